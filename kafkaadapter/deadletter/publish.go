package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// ErrTooLarge means that the broker refuses a dead letter because of its size, or that the letter
// does not fit into one transaction of the store.
var ErrTooLarge = errors.New("hapax: a dead letter is too large: raise max.message.bytes of its topic, or set the policy for kafkaadapter.LargeLetter to DeadLetter to publish it without its value")

const (
	answerTime      = 10 * time.Second // for one chunk
	defaultMaxBytes = 1_000_012        // max.message.bytes by Kafka's default
	batchOverhead   = 1 << 10
)

// A Publisher produces the letters of one dead-letter topic. It is safe for concurrent use.
//
// The client must accept batches of any size for the topic (kgo.ProducerBatchMaxBytesFn), because
// the client limits them before compression and the broker after it. To keep the batches within the
// broker's limit, the letters are sent in chunks, one at a time: each chunk is within the topic's
// max.message.bytes before compression, or is one letter.
type Publisher struct {
	client *kgo.Client
	topic  string
	turn   chan struct{} // held by the caller whose chunk is in progress
	limit  int           // the topic's max.message.bytes, 0 if it is not known; guarded by turn
}

// NewPublisher returns a publisher for a topic. A client has one for each dead-letter topic.
func NewPublisher(client *kgo.Client, topic string) *Publisher {
	return &Publisher{client: client, topic: topic, turn: make(chan struct{}, 1)}
}

// Publish produces pending letters and waits until the broker has answered for each of them. A
// letter that the broker has acknowledged leaves pending.Letters, and acked is called with it as it
// was published. If any letters remain, Publish returns the first error and may be called again.
// The letters stay in the store until Pending.Delete.
//
// If the broker rejects a letter that is alone in its batch because of its size, the letter is
// published without its value if omit is set. Otherwise Publish returns ErrTooLarge.
func (p *Publisher) Publish(ctx context.Context, pending *Pending, omit bool, acked func(letter *kgo.Record)) error {
	for len(pending.Letters) > 0 {
		if err := p.chunk(ctx, pending, omit, acked); err != nil {
			return err
		}
	}
	return nil
}

// chunk publishes the first letters of pending.
func (p *Publisher) chunk(ctx context.Context, pending *Pending, omit bool, acked func(*kgo.Record)) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.lookUp(ctx)
	letters := pending.Letters[:chunkOf(pending.Letters, p.limit-batchOverhead)]
	rest := pending.Letters[len(letters):]
	errs := p.produce(ctx, letters)
	var first error
	refused := false
	left := pending.Letters[:0]
	for i, letter := range letters {
		published, err := letter, errs[i]
		switch tooLarge := errors.Is(err, kerr.MessageTooLarge); {
		case tooLarge && len(letters) > 1:
			refused = true
			left = append(left, letter)
			continue
		case tooLarge && omit:
			published, err = p.shortened(ctx, letter)
		case tooLarge:
			err = fmt.Errorf("%w: %d bytes before compression: %w", ErrTooLarge, Size(letter), err)
		}
		if err == nil {
			acked(published)
			continue
		}
		left = append(left, letter)
		if first == nil {
			first = err
		}
	}
	switch {
	case first != nil:
		p.limit = 0 // before the next attempt the topic or its limit may have changed
	case refused:
		p.limit /= 2 // the next chunks are smaller, down to one letter each
	}
	n := len(left) + len(rest)
	left = append(left, rest...)
	clear(pending.Letters[n:])
	pending.Letters = left
	return first
}

// shortened publishes the largest form of a letter that the broker accepts, and returns it as
// published.
func (p *Publisher) shortened(ctx context.Context, letter *kgo.Record) (*kgo.Record, error) {
	for _, without := range shorter {
		short := without(letter)
		if err := p.produce(ctx, []*kgo.Record{short})[0]; !errors.Is(err, kerr.MessageTooLarge) {
			return short, err
		}
	}
	return letter, fmt.Errorf("%w: it is without value, key and headers already", ErrTooLarge)
}

// produce produces the letters together, and returns the broker's answers.
func (p *Publisher) produce(ctx context.Context, letters []*kgo.Record) []error {
	// The timeout is a cancellation and not a deadline: while the client has no producer id, it
	// fails records for context.Canceled, but for context.DeadlineExceeded it retries without a
	// pause and without end (kgo v1.22.2, sink.produce).
	parent := ctx
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	defer time.AfterFunc(answerTime, cancel).Stop()
	errs := make([]error, len(letters))
	// A client that has records and gets no producer id requests one again at once, and without end
	// (kgo v1.22.2: sink.drain has no pause after sink.produce could not load it). So the client
	// gets its id before it gets records.
	if _, _, err := p.client.ProducerID(ctx); err != nil {
		for i := range errs {
			errs[i] = noAnswer(parent, err)
		}
		return errs
	}
	var wait sync.WaitGroup
	wait.Add(len(letters))
	for i, letter := range letters {
		r := *letter // the client writes to the record
		r.Topic = p.topic
		p.client.Produce(ctx, &r, func(_ *kgo.Record, err error) {
			errs[i] = noAnswer(parent, err)
			wait.Done()
		})
	}
	wait.Wait()
	return errs
}

// noAnswer returns err, or an error that names the timeout if the timeout has expired and the
// parent context has not ended.
func noAnswer(parent context.Context, err error) error {
	if errors.Is(err, context.Canceled) && parent.Err() == nil {
		return fmt.Errorf("no answer in %v: %w", answerTime, context.DeadlineExceeded)
	}
	return err
}

// lookUp finds the topic's max.message.bytes. If the broker does not answer, it is Kafka's default.
func (p *Publisher) lookUp(ctx context.Context) {
	if p.limit > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	p.limit = defaultMaxBytes
	all, err := kadm.NewClient(p.client).DescribeTopicConfigs(ctx, p.topic)
	if err != nil {
		return
	}
	topic, err := all.On(p.topic, nil)
	if err != nil || topic.Err != nil {
		return
	}
	for _, c := range topic.Configs {
		if n, err := strconv.Atoi(c.MaybeValue()); err == nil && c.Key == "max.message.bytes" && n > 0 {
			p.limit = n
		}
	}
}

// chunkOf returns how many of the first letters fit into most bytes together, at least 1.
func chunkOf(letters []*kgo.Record, most int) int {
	for i, letter := range letters {
		if most -= Size(letter); most < 0 {
			return max(1, i)
		}
	}
	return len(letters)
}

// ReasonOf returns the reason of a dead letter, or the empty string if r is no dead letter.
func ReasonOf(r *kgo.Record) Reason { return Reason(identify.LastHeader(r.Headers, dltReason)) }
