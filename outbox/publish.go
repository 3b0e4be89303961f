package outbox

import (
	"bytes"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

// record makes the Kafka record of an item. The record shares no memory with the item: hooks of the
// client may change the record, and the item may be published again. Headers contain the id and the
// event time, the same on each attempt. Headers with these names that the application has forwarded
// from another message are left out. The client sets the timestamp to the time of publication, from
// which Kafka counts the retention. It uses the clock of the machine, because Kafka compares the
// timestamp with the clock of the broker.
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
// store has failed. The outcome of the messages in flight is then unknown.
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
// already has too many messages.
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

// landed returns the items that were left to the client and now have an outcome.
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

// expired closes the client and fails all messages that were left to it, when one of them may go to
// another partition and has waited for Batch.Time. It holds their partitions for a time, so that
// this message does go to another one.
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

// holdTime returns how long to hold a partition that was already held the given number of times.
// Trials are rare, because each delays the other partitions while the tried one is silent.
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
