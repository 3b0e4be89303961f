package kafkaadapter

import (
	"context"
	"time"
)

// wakeLoop wakes idle partitions for their periodic checks: of the hold, and of the store that was opened
// again.
func (c *shared) wakeLoop(ctx context.Context, parts *assignments) {
	t := time.NewTicker(min(time.Second, c.opt.Membership.CommitInterval))
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
