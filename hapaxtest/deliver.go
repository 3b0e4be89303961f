package hapaxtest

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Deliver produces the records to their topics, in order. It does not wait until they are handled.
// A record without a timestamp gets that of the machine. Deliver copies the records, and ignores
// their partition and offset.
func (c *Consumer) Deliver(records ...*kgo.Record) {
	c.t.Helper()
	copies := make([]*kgo.Record, len(records))
	for i, r := range records {
		if !slices.Contains(c.topics, r.Topic) {
			c.t.Fatalf("hapaxtest: no route consumes the topic %q of record %d", r.Topic, i)
		}
		copies[i] = &kgo.Record{
			Topic: r.Topic, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value), Timestamp: r.Timestamp, Headers: slices.Clone(r.Headers),
		}
	}
	c.broker.Produce(c.t, copies...)
}

// DeliverTwice delivers the records and waits until they are handled. Then it delivers a copy of
// each, as a producer does that has missed the answer of the broker and was restarted. The copies
// have other offsets, and other timestamps unless the records have one.
func (c *Consumer) DeliverTwice(records ...*kgo.Record) {
	c.t.Helper()
	c.Deliver(records...)
	c.Wait()
	c.Deliver(records...)
}

// DeliverThroughCrash delivers each record and cuts the power when its batch is written to the store
// but not yet synced, or as soon as its handler fails. The batch is lost: the consumer starts again,
// with what was synced, and reads the record once more. With Transactional the handler has run
// before the crash; with AtMostOnce it has not, because it runs after the sync.
func (c *Consumer) DeliverThroughCrash(records ...*kgo.Record) {
	c.t.Helper()
	for _, r := range records {
		c.Wait()
		c.life.store.HoldSyncs()
		c.Deliver(r)
		offset := c.broker.Log(c.t, r.Topic, 0).End - 1
		c.until("the batch of a record to be written", func() bool {
			return c.life.written(r.Topic) > offset || c.calls.hasFailed(r.Topic, offset)
		})
		c.crash()
	}
}
