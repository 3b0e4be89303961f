package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A plainConsumer is one without the adapter: a loop of the client library that polls. take is what
// its kind does with what a poll has brought.
type plainConsumer struct {
	consumeOrder
	client *kgo.Client
	gate   gate
	next   []int64 // by partition
	told   time.Time
	take   func(recs []*kgo.Record) error

	effects *effects
	e       *opened
	first   firstFetch
	read    uint64 // records
}

// plainPoll is the most records that are handled for one commit.
const plainPoll = 1000

func (o *consumeOrder) plainOptions(first *firstFetch) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Seeds...), kgo.ConsumerGroup(o.Group), kgo.InstanceID(instance), kgo.ConsumeTopics(o.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.WithHooks(first),
	}
	if o.Kind != rawLoop { // it commits as the library does unasked
		opts = append(opts, kgo.DisableAutoCommit())
	}
	return opts
}

func (o *consumeOrder) consumePlain(say *voice) (err error) {
	c := &plainConsumer{consumeOrder: *o, gate: gate{gateOrder: o.gateOrder, say: say}}
	if c.client, err = kgo.NewClient(o.plainOptions(&c.first)...); err != nil {
		return err
	}
	defer c.client.Close()
	if err := c.prepare(); err != nil {
		return err
	}
	c.gate.open(sum(c.next))
	for !c.atEnd() {
		fetches := c.client.PollRecords(context.Background(), c.atOnce())
		if err := fetches.Err(); err != nil {
			return err
		}
		recs := fetches.Records()
		if err := c.take(recs); err != nil {
			return err
		}
		c.advance(recs)
		if time.Since(c.told) > tellEvery {
			c.told = time.Now()
			say.line("at", sum(c.next))
		}
	}
	return c.finish(say)
}

const tellEvery = 100 * time.Millisecond

// prepare looks up where the group stands, and opens what the kind of consumer needs.
func (c *plainConsumer) prepare() error {
	if err := c.lookUp(); err != nil {
		return err
	}
	var err error
	if c.hasStore() {
		c.e, err = c.openStore(nil)
	} else if c.Effects != "" {
		c.effects, err = openEffects(c.Effects)
	}
	switch c.Kind {
	case rawLoop:
		c.take = func([]*kgo.Record) error { return nil }
	case offsetFirst:
		c.take = func(recs []*kgo.Record) error {
			if err := c.client.CommitRecords(context.Background(), recs...); err != nil {
				return err
			}
			return c.workOff(recs)
		}
	case memorySet:
		seen := make(map[uint64]bool)
		c.take = func(recs []*kgo.Record) error {
			return c.handleAndCommit(recs, func(number uint64) bool {
				old := seen[number]
				seen[number] = true
				return !old
			})
		}
	default:
		c.take = func(recs []*kgo.Record) error { return c.handleAndCommit(recs, func(uint64) bool { return true }) }
	}
	return err
}

// lookUp finds the offsets that the group has committed.
func (c *plainConsumer) lookUp() error {
	c.next = make([]int64, len(c.Ends))
	committed, err := c.committed()
	if errors.Is(err, kerr.GroupIDNotFound) { // it is new
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up the group's offsets: %w", err)
	}
	committed.Each(func(o kadm.OffsetResponse) {
		if o.Topic == c.Topic && o.At > 0 {
			c.next[o.Partition] = o.At
		}
	})
	return nil
}

// committed asks for the group's offsets. A broker that has never had a group makes their topic
// first, and is asked again until it has.
func (c *plainConsumer) committed() (offsets kadm.OffsetResponses, err error) {
	for range 60 {
		offsets, err = kadm.NewClient(c.client).FetchOffsets(context.Background(), c.Group)
		if err == nil || !kerr.IsRetriable(err) {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	return offsets, err
}

func (c *plainConsumer) atOnce() int {
	if c.Kind == rawLoop {
		return 0 // whatever there is
	}
	return plainPoll
}

func (c *plainConsumer) atEnd() bool {
	for p, end := range c.Ends {
		if c.next[p] < end {
			return false
		}
	}
	return true
}

func (c *plainConsumer) advance(recs []*kgo.Record) {
	c.read += uint64(len(recs))
	for _, r := range recs {
		c.next[r.Partition] = r.Offset + 1
	}
}

// handleAndCommit handles the events that wanted selects, and commits all.
func (c *plainConsumer) handleAndCommit(recs []*kgo.Record, wanted func(number uint64) bool) error {
	for _, r := range recs {
		number, err := numberOf(r, c.Limit)
		if err != nil {
			return err
		}
		c.gate.pass(1)
		if wanted(number) {
			if err := c.effects.add(number, idOf(r)); err != nil {
				return err
			}
		}
	}
	return c.client.CommitRecords(context.Background(), recs...)
}

// workOff claims the records and does their work in one transaction of the engine.
func (c *plainConsumer) workOff(recs []*kgo.Record) error {
	return c.e.Update(context.Background(), func(tx *engine.Tx) error {
		for _, r := range recs {
			number, err := numberOf(r, c.Limit)
			if err != nil {
				return err
			}
			c.gate.pass(1)
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
	ev = engine.Event{Scope: DefaultScope, ID: idOf(r), Origin: engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}}
	for i := range r.Headers {
		if r.Headers[i].Key == timeHeader {
			err = ev.Time.UnmarshalText(r.Headers[i].Value)
		}
	}
	return ev, err
}

func (c *plainConsumer) finish(say *voice) error {
	if c.Measure {
		say.line("measured", measurement{Seconds: c.first.since(), Handled: c.read})
	}
	if c.effects != nil {
		return c.effects.close()
	}
	if c.e != nil {
		return c.e.Close()
	}
	return nil
}
