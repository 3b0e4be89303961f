package bench

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

// A plainConsumer is a consumer without the adapter: a loop that polls the client library.
type plainConsumer struct {
	order  *consumer
	client *kgo.Client
	gate   *runner.Gate
	say    *runner.Voice
	next   []int64 // by partition

	e    *opened
	seen map[uint64]bool // events that were handled, to be skipped; nil: none is skipped
}

// plainPoll is the maximum number of records that are handled for one commit.
const plainPoll = 1000

func (c *consumer) consumePlain(say *runner.Voice) error {
	return (&plainConsumer{order: c, gate: runner.NewGate(c.Gate, say), say: say}).consume()
}

func (c *plainConsumer) consume() error {
	first := newFirstFetch()
	if err := c.connect(first); err != nil {
		return err
	}
	defer c.client.Close()
	take, err := c.open()
	if err != nil {
		return err
	}
	atOnce, read, told := plainPoll, uint64(0), time.Time{}
	if c.order.Kind == rawLoop {
		atOnce = 0 // all that are buffered
	}
	c.gate.Open(sum(c.next))
	for all := sum(c.order.Ends); sum(c.next) < all; {
		fetches := c.client.PollRecords(context.Background(), atOnce)
		if err := fetches.Err(); err != nil {
			return err
		}
		recs := fetches.Records()
		if err := take(recs); err != nil {
			return err
		}
		read += uint64(len(recs))
		for _, r := range recs {
			c.next[r.Partition] = r.Offset + 1
		}
		if time.Since(told) > tellEvery {
			told = time.Now()
			c.say.Line("at", progress{At: sum(c.next)})
		}
	}
	if c.order.Measure {
		m := first.since()
		m.Handled = read
		c.say.Line("measured", m)
	}
	if c.e != nil {
		return c.e.Engine.Close()
	}
	return nil
}

const tellEvery = 100 * time.Millisecond

// connect joins the group, and records its committed offsets.
func (c *plainConsumer) connect(first *firstFetch) (err error) {
	opts := []kgo.Opt{kgo.WithHooks(&first.clock)}
	if c.order.Kind != rawLoop { // a raw loop commits as the library does by default
		opts = append(opts, kgo.DisableAutoCommit())
	}
	c.client, c.next, err = topics.Join(context.Background(), c.order.Seeds, c.order.Group, c.order.Topic, len(c.order.Ends), opts...)
	return err
}

// open opens the resources of a kind of consumer, and returns the function for the records of a
// poll.
func (c *plainConsumer) open() (take func([]*kgo.Record) error, err error) {
	switch c.order.Kind {
	case rawLoop:
		return func([]*kgo.Record) error { return nil }, nil
	case offsetFirst:
		c.e, err = c.order.openStore(nil)
		return c.commitAndWork, err
	case memorySet:
		c.seen = make(map[uint64]bool)
	}
	return c.handleAndCommit, nil
}

// handleAndCommit handles the events that are not in the set, and commits the offsets of all
// records.
func (c *plainConsumer) handleAndCommit(recs []*kgo.Record) error {
	for _, r := range recs {
		number, err := traffic.NumberOf(r, c.order.Limit)
		if err != nil {
			return err
		}
		c.gate.Pass(1)
		if c.seen[number] {
			continue
		}
		if c.seen != nil {
			c.seen[number] = true
		}
		c.say.Line("handling", number)
	}
	return c.client.CommitRecords(context.Background(), recs...)
}

// commitAndWork commits the offsets, and then claims the records and does their work in one
// transaction of the engine.
func (c *plainConsumer) commitAndWork(recs []*kgo.Record) error {
	if err := c.client.CommitRecords(context.Background(), recs...); err != nil {
		return err
	}
	return c.e.Engine.Update(context.Background(), func(tx *engine.Tx) error {
		for _, r := range recs {
			number, err := traffic.NumberOf(r, c.order.Limit)
			if err != nil {
				return err
			}
			c.gate.Pass(1)
			ev, err := eventOf(r)
			if err != nil {
				return err
			}
			res, err := tx.TryClaim(ev)
			if err == nil && res.Verdict == engine.Claimed {
				err = addToState(tx, r.Partition, number)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// eventOf reads the event from a record's headers.
func eventOf(r *kgo.Record) (ev engine.Event, err error) {
	ev = engine.Event{Scope: traffic.DefaultScope, ID: traffic.IDOf(r), Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}}
	for i := range r.Headers {
		if r.Headers[i].Key == traffic.TimeHeader {
			err = ev.Time.UnmarshalText(r.Headers[i].Value)
		}
	}
	return ev, err
}
