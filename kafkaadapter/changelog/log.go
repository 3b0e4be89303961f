package changelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// A Log is one partition of a topic. Make it with Client.Log.
type Log struct {
	client *Client
	of     brokers.Partition

	mu       sync.Mutex // guards the rest; not held while a request is answered
	topic    [16]byte   // that Topic has returned
	producer *producer  // of the first append
	seen     seenEpoch
}

var _ replica.Log = (*Log)(nil)

// Topic implements replica.Log.
func (l *Log) Topic(ctx context.Context) (id [16]byte, err error) {
	err = l.until(ctx, "looking up", func() error {
		t, err := l.client.ask.Topic(ctx, l.of.Topic)
		if err != nil {
			return err
		}
		if id = t.ID; id == [16]byte{} {
			return fmt.Errorf("%w: its brokers have no topic ids: update them to Kafka 2.8 or newer", kerr.UnsupportedVersion)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topic = id
	return id, err
}

// Bounds implements replica.Log. It asks the leader.
func (l *Log) Bounds(ctx context.Context) (start, end int64, err error) {
	found, err := l.bounds(ctx)
	return found.Start, found.End, err
}

func (l *Log) bounds(ctx context.Context) (found brokers.Log, err error) {
	err = l.until(ctx, "asking the leader of", func() error {
		t, err := l.lookUp(ctx)
		if err == nil {
			found, err = l.client.ask.Log(ctx, t, l.of, -1)
		}
		return err
	})
	return found, err
}

// lookUp looks the topic up, which must be the one that Topic has returned.
func (l *Log) lookUp(ctx context.Context) (*brokers.Topic, error) {
	t, err := l.client.ask.Topic(ctx, l.of.Topic)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.topic != [16]byte{} && t.ID != l.topic {
		return nil, ErrRecreated
	}
	return t, nil
}

// unknownFor is how long a topic may be unknown to the brokers before it counts as missing: one that was
// just created is not known to all of them.
const unknownFor = 5 * time.Second

// until tries again until try succeeds, ctx ends, or another try cannot help.
func (l *Log) until(ctx context.Context, what string, try func() error) error {
	return l.client.until(ctx, fmt.Sprintf("%s changelog %s/%d", what, l.of.Topic, l.of.Partition), try)
}

func (c *Client) until(ctx context.Context, what string, try func() error) error {
	began := time.Now()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := try()
		if err == nil || errors.Is(err, replica.ErrOutOfRange) {
			return err
		}
		permanent, explained := explain(err)
		if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
			permanent = time.Since(began) > c.unknownFor
		}
		if permanent {
			return fmt.Errorf("hapax: %s: %w", what, explained)
		}
		if stopped := c.wait(ctx, pause); stopped != nil {
			return fmt.Errorf("hapax: %s: %w", what, errors.Join(stopped, explained))
		}
	}
}

// wait pauses, and returns why that was cut short.
func (c *Client) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return ErrClosed
	case <-t.C:
		return nil
	}
}

// Append implements replica.Log. After an error of ctx the record is still in flight, and its bytes must not
// change.
func (l *Log) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	p, err := l.bind()
	if err != nil {
		return replica.Ack{}, err
	}
	offset, err := p.append(ctx, l.of, record)
	if err != nil {
		if lossDetected(err) {
			err = fmt.Errorf("%w: %w", ErrLossDetected, err)
			l.client.replace(p, err)
		}
		if errors.Is(err, kerr.UnknownTopicID) {
			p.forget(l.of.Topic)
		}
		_, err = explain(err)
		return replica.Ack{}, fmt.Errorf("hapax: appending to changelog %s/%d: %w", l.of.Topic, l.of.Partition, err)
	}
	epoch, err := l.epochOf(ctx, p)
	return replica.Ack{Offset: max(offset, -1), Epoch: epoch}, err
}

// bind returns the producer of the log, which is that of its first append.
func (l *Log) bind() (*producer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.producer == nil {
		p, err := l.client.producing()
		if err != nil {
			return nil, err
		}
		l.producer = p
	}
	select {
	case <-l.producer.failed:
		return nil, l.producer.cause
	default:
		return l.producer, nil
	}
}
