package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// logEnds are the ends of a partition's log as the broker told them last.
type logEnds struct {
	end      atomic.Int64 // the high watermark
	stable   atomic.Int64 // the last stable offset: consumers read up to it
	stableAt atomic.Int64 // when stable was told, Unix nanoseconds; 0 if never
}

// tell notes ends. -1 is not known.
func (e *logEnds) tell(end, stable int64) {
	if end >= 0 {
		e.end.Store(end)
	}
	if stable >= 0 {
		e.stable.Store(stable)
		e.stableAt.Store(time.Now().UnixNano())
	}
}

// freshFor is how long the broker's word on the end of the log counts. A partition that could not
// be fetched for weeks must not be taken for one that is caught up.
const freshFor = time.Minute

// caughtUp reports whether next is the last stable offset, as the broker told not long ago.
func (e *logEnds) caughtUp(next int64) bool {
	return time.Since(time.Unix(0, e.stableAt.Load())) < freshFor && next >= e.stable.Load()
}

// lagLoop asks the brokers for the ends of the logs, off the poll path: the lag of a partition is
// known also while it is paused, stopped or idle.
func (c *Consumer) lagLoop(ctx context.Context) {
	t := time.NewTicker(c.opt.Telemetry.LagInterval)
	defer t.Stop()
	for {
		c.measure(ctx, c.partitions())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// measure asks for the ends of the logs of partitions.
func (c *Consumer) measure(ctx context.Context, all []*partition) {
	if len(all) == 0 {
		return
	}
	topics := make(map[string]bool)
	var names []string
	for _, p := range all {
		if !topics[p.pos.Topic] {
			topics[p.pos.Topic] = true
			names = append(names, p.pos.Topic)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	var ends, stable kadm.ListedOffsets
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { ends, errs[0] = c.admin.ListEndOffsets(ctx, names...) })
	wg.Go(func() { stable, errs[1] = c.admin.ListCommittedOffsets(ctx, names...) })
	wg.Wait()
	for _, p := range all {
		p.ends.tell(listed(ends, p), listed(stable, p))
	}
	if err := errors.Join(errs[:]...); err != nil && ctx.Err() == nil {
		c.throttled(c.opt.Telemetry.Logger.Warn, "the ends of the logs cannot be looked up; the lag is old", topicPartition{}, "error", err)
	}
}

func listed(offsets kadm.ListedOffsets, p *partition) int64 {
	if o, ok := offsets.Lookup(p.pos.Topic, p.pos.Partition); ok && o.Err == nil {
		return o.Offset
	}
	return -1
}

// unanswered reports whether the partition waits for the broker: there are records that it does not
// send, or it has not told for long whether there are.
func (p *partition) unanswered() bool {
	told := time.Since(time.Unix(0, p.ends.stableAt.Load()))
	return p.ends.stable.Load() > p.next || told > max(p.c.opt.Timeouts.Silence, 2*p.c.opt.Telemetry.LagInterval)
}

// isSilent reports whether an idle partition has waited for the broker for longer than
// Timeouts.Silence.
func (p *partition) isSilent() bool {
	switch {
	case !p.unanswered():
		p.waitsSince = time.Time{}
	case p.waitsSince.IsZero():
		p.waitsSince = time.Now()
	}
	return !p.waitsSince.IsZero() && time.Since(p.waitsSince) > p.c.opt.Timeouts.Silence
}

// listen reports a silent partition, and waits for the broker. The client goes on fetching.
func (p *partition) listen() state {
	p.report("silent", fmt.Errorf("%w: offset %d, last stable offset %d", ErrSilent, p.next, p.ends.stable.Load()), time.Time{})
	for p.queue.isIdle() && p.unanswered() {
		select {
		case <-p.ending.Done():
			return ended
		case <-p.queue.wake:
		}
	}
	p.waitsSince = time.Time{}
	return p.reading()
}
