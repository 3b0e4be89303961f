package outbox

import (
	"bytes"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

// record makes the Kafka record of an item, which shares no memory with it: hooks of the client may
// change the record, and the item may be published again. The id and the event time are in headers,
// the same on each attempt; those of another message, which the application has forwarded, are left
// out. The client sets the timestamp to the time of the publication, from which Kafka counts the
// retention: by the clock of the machine, because Kafka compares it with that of the broker.
func (i *item) record() *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, len(i.Entry.Headers)+2)
	for _, h := range i.Entry.Headers {
		if h.Key != correlation.MessageID && h.Key != correlation.MessageTime {
			headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: bytes.Clone(h.Value)})
		}
	}
	at := time.UnixMilli(i.Entry.Time)
	headers = append(headers,
		kgo.RecordHeader{Key: correlation.MessageID, Value: []byte(i.Entry.ID)},
		kgo.RecordHeader{Key: correlation.MessageTime, Value: at.UTC().AppendFormat(nil, time.RFC3339Nano)})
	r := &kgo.Record{Topic: i.Entry.Topic, Partition: i.Entry.Partition, Key: bytes.Clone(i.Entry.Key), Value: bytes.Clone(i.Entry.Value), Headers: headers}
	if i.Entry.Stamped {
		r.Timestamp = at
	}
	return r
}

// publish publishes the items of a batch one by one. An error means that the lease is lost or the
// store has failed: the outcome of the messages in flight is then unknown.
func (c *connection) publish(items []*item) error {
	if err := c.connect(); err != nil {
		return err
	}
	b := newSending(c, len(items))
	b.startGroups(items, func([]*item) bool { return false })
	if err := b.await(); err != nil {
		c.abandon()
		return err
	}
	if len(b.flying) > 0 && b.silent && c.leave(b) {
		return nil
	}
	for i := range b.flying { // the time of the batch is over
		i.outcome, i.err = failed, errBatchTime
	}
	if len(b.flying) > 0 {
		c.abandon()
	}
	return nil
}

// leave leaves the messages in flight to the client and holds their partitions, unless the client
// has too many already.
func (c *connection) leave(b *sending) bool {
	messages, bytes := 0, 0
	for _, l := range append([]*sending{b}, c.leftOver...) {
		for i := range l.flying {
			messages, bytes = messages+1, bytes+i.size()
		}
	}
	if messages > MaxBatchEntries || bytes > maxAheadBytes { // it has room for one more batch
		return false
	}
	for i, f := range b.flying {
		i.outcome, i.on = flying, f.partition()
		c.hold(i.on, func(h *hold) { h.sent++ })
	}
	b.left.Store(true)
	c.leftOver = append(c.leftOver, b)
	return true
}

// landed returns the items that were left to the client and have an outcome now.
func (c *connection) landed() (items []*item) {
	c.leftOver = slices.DeleteFunc(c.leftOver, func(b *sending) bool {
		for len(b.results) > 0 {
			r := <-b.results
			i := r.flight.item
			delete(b.flying, i)
			items = append(items, i)
			i.offset, i.err = r.offset, r.err
			if r.err == nil {
				i.outcome = published
				c.answered(i.on)
			} else if i.outcome = failed; c.shared.holds.failed(i.on) {
				c.answered(i.on)
			}
		}
		return len(b.flying) == 0
	})
	return items
}

// hold changes the hold of a partition.
func (c *connection) hold(p partition, fn func(*hold)) {
	if c.shared.holds.change(p, fn) {
		c.shared.opt.Telemetry.Logger.Warn("outbox: a partition does not answer: its messages wait until it does, and others do not wait for it", p.attrs()...)
	}
}

// answered ends the hold of a partition. The groups that wait for it are released after the batch.
func (c *connection) answered(p partition) {
	if c.shared.holds.end(p) {
		c.shared.opt.Telemetry.Logger.Info("outbox: a held partition is tried again, or has answered", p.attrs()...)
	}
	c.released = append(c.released, p)
}
