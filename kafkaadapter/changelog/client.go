package changelog

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kgohooks"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/brokers"
)

// A Client reads and appends to the logs of a process. It is safe for concurrent use.
type Client struct {
	opts        []kgo.Opt
	replication int
	unknownFor  time.Duration // how long a topic may be unknown before it counts as missing
	logger      *slog.Logger
	hooks       kgohooks.Owner
	reader      *kgo.Client // also creates topics
	ask         *brokers.Client

	mu       sync.Mutex // guards the rest; not held while a request is answered
	producer *producer  // nil: the next log makes one
	closed   bool
	done     chan struct{}  // closed with the Client
	ending   sync.WaitGroup // producers that are replaced
}

// New makes a client. opts are those of the application: seed brokers, TLS, SASL, hooks. What the logs need is
// added; options that contradict it are refused with ErrOption. It does not connect.
func New(opts []kgo.Opt, o Options) (*Client, error) {
	t, err := o.Telemetry.Complete()
	if err != nil {
		return nil, fmt.Errorf("%w: Telemetry.%w", ErrOption, err)
	}
	if o.Replication < 0 || o.Replication > math.MaxInt16 {
		return nil, fmt.Errorf("%w: Replication is %d", ErrOption, o.Replication)
	}
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	c := &Client{
		opts:        slices.Concat(defaults(), opts),
		replication: o.Replication,
		unknownFor:  unknownFor,
		done:        make(chan struct{}),
		logger:      t.Logger,
	}
	reader, err := c.hooks.NewClient(slices.Concat(c.opts, required())...)
	if err != nil {
		return nil, err
	}
	c.reader, c.ask = reader, brokers.New(reader)
	return c, nil
}

// Log returns the log of one partition, for one call of replica.Open or replica.Follow: if the producer of
// the process has failed since, its appends fail with ErrLossDetected, and those of a new Log do not.
func (c *Client) Log(topic string, partition int32) *Log {
	return &Log{client: c, of: brokers.Partition{Topic: topic, Partition: partition}, seen: seenEpoch{epoch: -1}}
}

// Close ends all appends and reads. Records whose outcome is not known may still be appended.
func (c *Client) Close() {
	c.mu.Lock()
	p := c.producer
	c.producer = nil
	if !c.closed {
		c.closed = true
		close(c.done)
	}
	c.mu.Unlock()
	if p != nil {
		p.fail(ErrClosed)
	}
	c.ending.Wait()
	c.reader.CloseAllowingRebalance()
	c.hooks.Close()
}

// producing returns the producer of the process.
func (c *Client) producing() (*producer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.producer != nil {
		return c.producer, nil
	}
	p := newProducer()
	kafka, err := c.hooks.NewClient(slices.Concat(c.opts, required(), []kgo.Opt{kgo.WithHooks(p)})...)
	if err != nil {
		return nil, err
	}
	p.kafka, c.producer = kafka, p
	return p, nil
}

// lossDetected reports whether an error of an append is that of a broker which does not know what the
// producer has written earlier. The producer then accepts no more records.
func lossDetected(err error) bool {
	return errors.Is(err, kerr.OutOfOrderSequenceNumber) || errors.Is(err, kerr.UnknownProducerID) ||
		errors.Is(err, kerr.InvalidProducerIDMapping) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// replace ends a producer that has failed. The next log makes another one.
func (c *Client) replace(p *producer, cause error) {
	c.mu.Lock()
	current := c.producer == p
	if current {
		c.producer = nil
		c.ending.Add(1)
	}
	c.mu.Unlock()
	if current {
		defer c.ending.Done()
		c.logger.Error("hapax: the producer of the changelogs is replaced, and its partitions are opened again", "error", cause)
	}
	p.fail(cause)
}
