package outbox

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/internal/entry"
)

// record makes the Kafka record of an item, which shares no memory with it: hooks of the client may
// change the record, and the item may be published again. The id and the event time are in headers,
// the same on each attempt; those of another message, which the application has forwarded, are left
// out. The client sets the timestamp to the time of the publication, from which Kafka counts the
// retention: by the clock of the machine, because Kafka compares it with that of the broker.
func (i *item) record() *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, len(i.Headers)+2)
	for _, h := range i.Headers {
		if h.Key != correlation.MessageID && h.Key != correlation.MessageTime {
			headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: bytes.Clone(h.Value)})
		}
	}
	at := time.UnixMilli(i.Time)
	headers = append(headers,
		kgo.RecordHeader{Key: correlation.MessageID, Value: []byte(i.ID)},
		kgo.RecordHeader{Key: correlation.MessageTime, Value: at.UTC().AppendFormat(nil, time.RFC3339Nano)})
	r := &kgo.Record{Topic: i.Topic, Partition: i.Partition, Key: bytes.Clone(i.Key), Value: bytes.Clone(i.Value), Headers: headers}
	if i.Stamped {
		r.Timestamp = at
	}
	return r
}

// A sending is a batch on its way to the broker. Of each group, one item at a time is in flight,
// unless all succeed or fail together: a later item never overtakes an earlier one that fails.
type sending struct {
	c       *connection
	client  producer
	results chan result
	flying  map[*item]struct{}
	behind  map[entry.Group][]*item // items that wait for the one in flight
	started time.Time
}

// chainTime is how long a batch sends further items of a group after the first one. Messages that are
// produced meanwhile wait for the end of the batch.
const chainTime = 250 * time.Millisecond

type result struct {
	item   *item
	offset int64
	err    error
}

func newSending(c *connection, n int) *sending {
	return &sending{
		c: c, client: c.client, results: make(chan result, n), flying: make(map[*item]struct{}, n),
		behind: make(map[entry.Group][]*item), started: c.opt.Clock.Now(),
	}
}

// publish publishes the items of a batch one by one. An error means that the lease is lost or the
// store has failed: the outcome of the messages in flight is then unknown.
func (c *connection) publish(items []*item) error {
	if err := c.connect(); err != nil {
		return err
	}
	b := newSending(c, len(items))
	inFlight := make(map[entry.Group]struct{}, len(items))
	for _, i := range items {
		if _, wait := inFlight[i.group]; wait {
			b.behind[i.group] = append(b.behind[i.group], i)
			continue
		}
		inFlight[i.group] = struct{}{}
		b.start(i)
	}
	if err := b.await(b.finish); err != nil {
		c.abandon()
		return err
	}
	for i := range b.flying { // the time of the batch is over
		i.outcome, i.err = failed, errBatchTime
	}
	if len(b.flying) > 0 {
		c.abandon()
	}
	return nil
}

// start sends an item, unless the send could outlast the lease.
func (b *sending) start(i *item) {
	left := b.c.opt.Batch.Time - b.c.opt.Clock.Now().Sub(b.started)
	if left <= 0 || !b.c.lease.covers(left) {
		return
	}
	b.flying[i] = struct{}{}
	b.client.Produce(context.Background(), i.record(), func(r *kgo.Record, err error) {
		b.results <- result{i, r.Offset, err} // it has capacity for all
	})
}

func (b *sending) finish(r result) {
	delete(b.flying, r.item)
	r.item.offset = r.offset
	if r.err != nil {
		r.item.outcome, r.item.err = failed, r.err
		return
	}
	r.item.outcome = published
	if behind := b.behind[r.item.group]; len(behind) > 0 && b.c.opt.Clock.Now().Sub(b.started) < chainTime {
		b.behind[r.item.group] = behind[1:]
		b.start(behind[0])
	}
}

// await calls each for the results of the items in flight, until there are none, or the time of the
// batch is over. It renews the lease meanwhile and ends with an error if that fails.
func (b *sending) await(each func(result)) error {
	over, stopOver := b.c.opt.Clock.After(b.c.opt.Batch.Time - b.c.opt.Clock.Now().Sub(b.started))
	defer stopOver()
	renew, stopRenew := b.c.opt.Clock.After(b.c.lease.untilRenewal())
	defer func() { stopRenew() }()
	for len(b.flying) > 0 {
		select {
		case r := <-b.results:
			each(r)
		case <-over:
			return nil
		case <-renew:
			if err := b.c.lease.ensure(b.c.eng, 0); err != nil {
				return fmt.Errorf("outbox: renewing the lease during a batch: %w", err)
			}
			stopRenew()
			renew, stopRenew = b.c.opt.Clock.After(b.c.lease.untilRenewal())
		}
	}
	return nil
}
