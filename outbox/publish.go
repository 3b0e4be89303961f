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
		c.hold(i.on, func(h *hold) { h.sent, h.until, h.over = h.sent+1, 0, false })
		if i.free() {
			b.free++
		}
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
			if i.free() {
				b.free--
			}
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

// expired fails the messages that were left to the client, and closes it, when one of them could be
// published to another partition and was not answered for Batch.Time. Their partitions are then held
// for a time, so that it is.
func (c *connection) expired() (items []*item) {
	now := c.shared.opt.Clock.Now()
	if !slices.ContainsFunc(c.leftOver, func(b *sending) bool { return b.free > 0 && now.Sub(b.started) >= c.shared.opt.Batch.Time }) {
		return nil
	}
	c.abandon()
	partitions := make(map[partition]struct{})
	for _, b := range c.leftOver {
		for i := range b.flying {
			i.outcome, i.err = failed, errSilent
			partitions[i.on] = struct{}{}
			items = append(items, i)
		}
	}
	c.leftOver = nil
	c.holdForATime(partitions)
	return items
}

// holdForATime holds partitions that are silent, until they are tried again.
func (c *connection) holdForATime(partitions map[partition]struct{}) {
	for p := range partitions {
		c.hold(p, func(h *hold) {
			h.until = c.shared.opt.Clock.Now().Add(holdTime(&c.shared.opt, h.times)).UnixMilli()
			h.sent, h.times, h.over = 0, h.times+1, false
		})
	}
}

// holdTime returns how long a partition is held that was held before. A trial delays the others for as
// long as the partition is silent: so it is rare.
func holdTime(o *Options, times int) time.Duration {
	return max(4*min(silence<<min(times, 10), o.Batch.Time), o.Retry.delay(uint64(times)+1))
}

// longestHold returns the maximum of holdTime.
func longestHold(o *Options) time.Duration { return max(4*o.Batch.Time, o.Retry.Max) }

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
