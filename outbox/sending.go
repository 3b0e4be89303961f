package outbox

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// A sending is a batch that is being published. One item of each group is in flight at a time,
// unless all items succeed or fail together. So a later item never overtakes an earlier one that
// fails or waits for a held partition.
type sending struct {
	c       *connection
	client  producer
	results chan result
	flying  map[*item]*flight
	behind  map[entry.Group][]*item // items that wait for the one in flight
	started time.Time

	answers int         // answers of the broker so far
	silent  bool        // partitions of the items in flight do not answer, while others do
	free    int         // items left to the client that may go to any partition
	left    atomic.Bool // the items in flight are left to the client, and results wake the session
}

// chainTime is how long a batch sends further items of a group after the first one. Messages that are
// produced meanwhile wait for the end of the batch.
const chainTime = 250 * time.Millisecond

type result struct {
	flight *flight
	offset int64
	by     producerID
	err    error
}

func newSending(c *connection, n int) *sending {
	return &sending{
		c: c, client: c.client, results: make(chan result, n), flying: make(map[*item]*flight, n),
		behind: make(map[entry.Group][]*item), started: c.shared.opt.Clock.Now(),
	}
}

// start sends an item, unless the send could outlast the lease or a partition of its topic is held.
func (b *sending) start(i *item) {
	left := b.c.shared.opt.Batch.Time - b.c.shared.opt.Clock.Now().Sub(b.started)
	if left <= 0 || !b.c.shared.lease.covers(left) {
		return
	}
	unknown := partition{i.Entry.Topic, unknownPartition}
	if until, held := b.c.shared.holds.held(unknown); held {
		i.outcome, i.on, i.until = waiting, unknown, until
		return
	}
	f := newFlight(i)
	b.flying[i] = f
	b.client.Produce(f, i.record(), func(r *kgo.Record, err error) {
		b.results <- result{f, r.Offset, producerID{r.ProducerID, r.ProducerEpoch}, untrusted.Error(err)} // it has capacity for all
		if b.left.Load() {
			b.c.shared.wakeUp()
		}
	})
}

// startGroups starts the items of each group one after the other, or at once those of groups for which
// together returns true.
func (b *sending) startGroups(items []*item, together func(group []*item) bool) {
	groups := make(map[entry.Group][]*item, len(items))
	for _, i := range items {
		groups[i.group] = append(groups[i.group], i)
	}
	for _, i := range items {
		group := groups[i.group]
		switch {
		case group == nil: // started, or behind the first one
			continue
		case together(group):
			for _, i := range group {
				b.start(i)
			}
		default:
			b.behind[i.group] = group[1:]
			b.start(i)
		}
		groups[i.group] = nil
	}
}

// notSent reports whether an item was not sent because its partition is held, or because an earlier
// item of its group was not acknowledged.
func (b *sending) notSent(i *item) bool {
	return i.outcome == waiting || i.outcome == left && b.flying[i] == nil
}

func (b *sending) finish(r result) {
	i := r.flight.item
	delete(b.flying, i)
	i.offset, i.by = r.offset, r.by
	broker := (*kerr.Error)(nil)
	switch {
	case r.flight.held.Load():
		i.outcome, i.on = waiting, r.flight.partition()
		i.until, _ = b.c.shared.holds.held(i.on)
		return
	case r.err != nil:
		i.outcome, i.err = failed, r.err
		if errors.As(r.err, &broker) {
			b.answers++
		}
		return
	}
	b.answers++
	i.outcome = published
	if b.c.shared.holds.times(r.flight.partition()) > 0 {
		b.c.answered(r.flight.partition())
	}
	if behind := b.behind[i.group]; len(behind) > 0 && b.c.shared.opt.Clock.Now().Sub(b.started) < chainTime {
		b.behind[i.group] = behind[1:]
		b.start(behind[0])
	}
}

// await waits for the results of the items in flight. It ends when it has all of them, when the
// time of the batch is over, or when the partitions of the remaining items are silent. It renews
// the lease meanwhile and returns an error if that fails.
func (b *sending) await() error {
	over, stopOver := b.c.shared.opt.Clock.After(b.c.shared.opt.Batch.Time - b.c.shared.opt.Clock.Now().Sub(b.started))
	defer stopOver()
	renew, stopRenew := b.c.shared.opt.Clock.After(b.c.shared.lease.untilRenewal())
	defer func() { stopRenew() }()
	quiet, stopQuiet := b.c.shared.opt.Clock.After(silence)
	defer func() { stopQuiet() }()
	for silences, answers := 0, b.answers; len(b.flying) > 0; {
		select {
		case r := <-b.results:
			b.finish(r)
		case <-over:
			b.silent = b.areSilent()
			return nil
		case <-quiet:
			if silences++; b.answers != answers {
				silences, answers = 0, b.answers
			}
			if b.silent = silences > 0 && b.areSilent() && silences >= 1<<b.held(); b.silent {
				return nil
			}
			stopQuiet()
			quiet, stopQuiet = b.c.shared.opt.Clock.After(silence)
		case <-renew:
			if err := b.c.shared.lease.ensure(b.c.shared.eng, 0); err != nil {
				return fmt.Errorf("hapax: outbox: renewing the lease during a batch: %w", err)
			}
			stopRenew()
			renew, stopRenew = b.c.shared.opt.Clock.After(b.c.shared.lease.untilRenewal())
		}
	}
	return nil
}

// areSilent reports whether the items in flight wait for their partitions, and not for an
// unreachable broker. This is so if the broker has answered for other items, or if all items in
// flight have failed before, so that nothing else waits for them.
func (b *sending) areSilent() bool {
	for i := range b.flying {
		if i.key == nil || b.answers == 0 && i.Entry.Attempts == 0 { // the record of progress has no key
			return false
		}
	}
	return true
}

// held returns how often in succession the partition of an item in flight was held, the maximum of
// all items, for the exactly-once relay. It is 0 for the plain relay, which leaves such items to
// the client.
func (b *sending) held() (times int) {
	if b.c.shared.opt.ExactlyOnce == nil {
		return 0
	}
	for _, f := range b.flying {
		times = max(times, b.c.shared.holds.times(f.partition()))
	}
	return min(times, 10)
}
