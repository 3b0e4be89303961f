package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// wakeLoop wakes idle partitions for their periodic checks: of silence, of the hold, and of the store
// that was opened again.
func (c *shared) wakeLoop(ctx context.Context, parts *assignments) {
	t := time.NewTicker(min(time.Second, c.opt.Membership.CommitInterval, max(c.opt.Timeouts.Silence/4, time.Millisecond)))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, p := range parts.all() {
			p.queue.Wake()
		}
	}
}

// waitStopped waits for the next try.
func (r *partitionState) waitStopped() state {
	if r.retry == ended {
		select {
		case <-r.partition.ending.Done():
			return ended
		case r.adopting = <-r.partition.adoptions:
			return lookingUp
		}
	}
	gone := makeRoom(r, r.retryIn)
	switch {
	case !r.partition.wait(r.retryIn):
		return ended
	case gone:
		return lookingUp
	}
	return r.retry
}

// waitPaused waits until the application resumes the partition. A stop has ended before that: the
// partition is not read only because it is paused.
func (r *partitionState) waitPaused() state {
	gone := false
	r.isRead()
	for r.partition.IsPaused() {
		gone = gone || makeRoom(r, longWait)
		select {
		case <-r.partition.ending.Done():
			return ended
		case <-r.partition.queue.C:
		}
	}
	if gone {
		return lookingUp
	}
	return r.readState()
}

// longWait is how long a partition must not be read for its records to be worth fetching again.
const longWait = time.Second

// makeRoom drops the fetched records of a partition that waits for a while, if they and those of other
// partitions use up the memory: others would starve. It reports whether the partition must be
// looked up to read them again.
func makeRoom(r *partitionState, wait time.Duration) (gone bool) {
	if _, held := r.partition.queue.Size(); held == 0 || wait < longWait || r.large != nil || !r.partition.c.memory.IsFull() {
		return false
	}
	r.partition.all.pause(r.partition)
	r.partition.queue.Close()
	clear(r.buf[:cap(r.buf)])
	r.taken, r.cause = nil, nil
	r.lookout.recycleAll()
	r.partition.handlers.hands.end()
	return true
}

// unanswered reports whether the partition waits for the broker: the broker has records that it
// does not send, or has not reported the end of the log for long.
func (r *partitionState) unanswered() bool {
	told := time.Since(time.Unix(0, r.partition.ends.stableAt.Load()))
	return r.partition.ends.stable.Load() > r.next || told > max(r.partition.c.opt.Timeouts.Silence, 2*r.partition.c.opt.Telemetry.LagInterval)
}

// isSilent reports whether an idle partition has waited for the broker for longer than
// Timeouts.Silence.
func (r *partitionState) isSilent() bool {
	switch {
	case !r.unanswered():
		r.waitsSince = time.Time{}
	case r.waitsSince.IsZero():
		r.waitsSince = time.Now()
	}
	return !r.waitsSince.IsZero() && time.Since(r.waitsSince) > r.partition.c.opt.Timeouts.Silence
}

// errNoMemory is the reason why a partition without records is not fetched.
var errNoMemory = errors.New("hapax: nothing is fetched, because the records of other partitions use all of Batching.MaxBufferedBytes: do their handlers hang? Raise it if they do not")

// listen reports a silent partition, and waits for the broker. The client continues fetching.
func (r *partitionState) listen() state {
	why := ErrSilent
	if r.partition.c.memory.IsFull() {
		why = errNoMemory
	}
	r.report("silent", fmt.Errorf("%w: offset %d, last stable offset %d", why, r.next, r.partition.ends.stable.Load()), time.Time{})
	for r.partition.queue.IsIdle() && r.unanswered() {
		select {
		case <-r.partition.ending.Done():
			return ended
		case <-r.partition.queue.C:
		}
	}
	r.waitsSince = time.Time{}
	return r.readState()
}
