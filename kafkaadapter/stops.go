package kafkaadapter

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/replica"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// isRead records that the partition is read: records came, or there are none to read.
func (r *partitionState) isRead() {
	r.partition.mu.Lock()
	was := r.partition.stat.stop
	r.partition.stat.stop, r.partition.stat.nextTry = nil, time.Time{}
	r.partition.mu.Unlock()
	if was != nil {
		r.lastStop, r.lastStopEnd = was.Reason, time.Now()
		r.partition.c.throttled(r.partition.log.Info, "partition continues", r.partition.tp(), "reason", was.Reason)
	}
}

// report records why the partition is not read, and logs it if the reason is new. A next try of
// zero means that there is none in this assignment.
func (r *partitionState) report(reason string, err error, nextTry time.Time) {
	e := &StopError{r.partition.pos.Topic, r.partition.pos.Partition, reason, err}
	r.partition.mu.Lock()
	was := r.partition.stat.stop
	r.partition.stat.stop, r.partition.stat.nextTry = e, nextTry
	r.partition.mu.Unlock()
	// the stop had ended for a moment
	again := was == nil && r.lastStop == reason && time.Since(r.lastStopEnd) < logEvery
	if again || was != nil && was.Reason == reason && errors.Is(kindOf(was.Err), kindOf(err)) {
		r.partition.c.throttled(r.partition.log.Warn, "partition is still stopped", r.partition.tp(), "reason", reason, "error", err)
		return
	}
	r.partition.c.m.stops.WithLabelValues(r.partition.pos.Topic, reason).Inc()
	r.partition.log.Error("partition stopped", "reason", reason, "error", err)
	r.partition.onStop.call(func() *StopError { return e })
}

// endAttempt removes a stored attempt before a stop is reported: code that learns of the stop may end
// the process. The worker, which does the same when it ends, returns the error.
func (r *partitionState) endAttempt() { _ = r.partition.fence.Unmark(r.partition.ctx) }

// stop stops the partition for a reason that lasts for the assignment, unless AdoptOffset ends it.
func (r *partitionState) stop(reason string, err error) state {
	closeQueue(r.partition)
	r.endAttempt()
	r.retry = ended
	r.report(reason, err, time.Time{})
	return stopped
}

// stopForNow stops the partition for a transient reason: the next try begins in the state retry,
// after a backoff.
func (r *partitionState) stopForNow(reason string, err error, retry state) state {
	if r.partition.isEnding() {
		return ended
	}
	r.endAttempt()
	pause := r.retries.NextBackOff()
	r.retry, r.retryIn = retry, pause
	r.report(reason, err, time.Now().Add(pause))
	return stopped
}

// failed returns the state after an error of the store, or of a batch, that no further try will
// fix.
func (r *partitionState) failed(err error) state {
	switch {
	case r.partition.ctx.Err() != nil:
	case r.partition.store.hasFailed(err):
		return storeFailed(r, err)
	case errors.Is(err, ErrFenced):
		r.partition.c.m.fenced.WithLabelValues(r.partition.pos.Topic).Inc()
		r.partition.log.Warn("a batch was dropped: the partition has another owner by now")
		return r.fencedOff(err)
	case isEnd(err):
	case errors.Is(err, identify.ErrNoTopicID):
		return r.stop("undecodable", err)
	case errors.Is(err, ErrMismatch):
		return r.stop("mismatch", err)
	case errors.Is(err, deadletter.ErrTooLarge):
		return r.stop("dead_letter", err)
	case r.partition.c.goesOn(r.partition.link.Load(), err):
		return failingOpen
	default:
		r.partition.c.fail(err)
	}
	return ended
}

// fencedOff returns the state after another consumer has become the owner in the store. Of two
// members of a group, one has lost the partition and may not have learned it yet, and may have been
// the last to become the owner. It learns it with a heartbeat: the other member then takes the
// partition over again. Between two pinned consumers there is no arbiter, and the later owner keeps
// the partition.
func (r *partitionState) fencedOff(err error) state {
	if r.partition.c.opt.Membership.isPinned() {
		r.partition.offsets.fence()
	}
	switch {
	case r.partition.isEnding() || !r.partition.all.isAssigned(r.partition):
		return ended
	case r.partition.c.opt.Membership.isPinned():
		r.report("fenced", err, time.Time{})
		return ended
	}
	r.partition.all.pause(r.partition)
	r.partition.queue.Close()
	r.partition.fence.Lose()
	r.taken, r.pending = nil, nil // the other owner may have changed the store
	heartbeat, _ := r.partition.c.brokers.client.OptValue(kgo.HeartbeatInterval).(time.Duration)
	r.retry, r.retryIn = r.partition.store.first(), max(heartbeat, r.retries.NextBackOff())
	r.report("fenced", err, time.Now().Add(r.retryIn))
	return stopped
}

// dropTaken forgets the records that were taken: they are read again after the partition was looked up.
func dropTaken(r *partitionState) {
	clear(r.buf[:cap(r.buf)])
	r.taken, r.pending, r.large, r.blame = nil, nil, nil, nil
	r.lookout.recycleAll()
	r.partition.handlers.hands.end()
}

// storeFailed returns the state after the partition's own store has ended: it is opened again. Another
// owner has ended it, or the outcome of a write to the changelog is unknown, or the copy is damaged.
func storeFailed(r *partitionState, err error) state {
	closeQueue(r.partition)
	dropTaken(r)
	r.partition.fence.Forget()
	if errors.Is(err, replica.ErrFenced) {
		r.partition.c.m.fenced.WithLabelValues(r.partition.pos.Topic).Inc()
		return r.fencedOff(err)
	}
	return r.stopForNow("changelog", err, restoring)
}

// wakeLoop wakes idle partitions that have something to check.
func (c *shared) wakeLoop(ctx context.Context, parts *assignments) {
	t := time.NewTicker(min(time.Second, c.opt.commitInterval))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, p := range parts.all() {
			if isDue(p) {
				p.queue.Wake()
			}
		}
	}
}

// isDue reports whether a partition has something to do although no records came: to end a stop, as
// there is nothing to read, to make room while it is paused, to use the store that was opened again, or to
// move its hold. It is called for all partitions again and again, and must be cheap.
func isDue(p *partition) bool {
	s := p.currentStatus()
	switch {
	case s.stop != nil || p.open.Load() || p.store.err() != nil:
		return true
	case s.state == paused:
		return p.c.memory.IsFull()
	case p.c.opt.ReopenStore != nil:
		if l, _ := p.links.get(); l != p.link.Load() {
			return true
		}
	}
	return !p.hold.isCurrent()
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
	return waitMakingRoom(r, r.retryIn, r.retry)
}

// waitMakingRoom pauses, and returns the next state: if the fetched records were dropped meanwhile, they
// are looked up again.
func waitMakingRoom(r *partitionState, d time.Duration, next state) state {
	for {
		if makeRoom(r, d) {
			next = lookingUp
		}
		step := min(d, longWait)
		if !r.partition.wait(step) {
			return ended
		}
		if d -= step; d <= 0 {
			return next
		}
	}
}

// waitPaused waits until the application resumes the partition. A stop has ended before that: the
// partition is not read only because it is paused.
func (r *partitionState) waitPaused() state {
	gone := false
	r.isRead()
	for r.partition.IsPaused() {
		if err := r.partition.store.err(); err != nil {
			return r.failed(err)
		}
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
	closeQueue(r.partition)
	clear(r.buf[:cap(r.buf)])
	r.taken, r.cause = nil, nil
	r.lookout.recycleAll()
	r.partition.handlers.hands.end()
	return true
}

// closeQueue drops the fetched records that were not taken. The client fetches no others until the
// partition was looked up again.
func closeQueue(p *partition) {
	p.all.pause(p)
	p.queue.Close()
}

// releaseQueue gives the memory of fetched records back when the partition's goroutine ends.
func releaseQueue(p *partition) {
	if p.isEnding() {
		p.queue.Close()
		return
	}
	closeQueue(p) // it remains assigned, for example because it was fenced
}
