package feed

import (
	"context"
	"time"
)

// starveAfter is how long the poll loop waits for a full queue while another partition has no
// records although the broker has some for it. idleAfter is the same for the case that only the
// partitions with full queues have records. After that, queues may exceed their number of records,
// up to their limit in bytes.
const (
	starveAfter = 100 * time.Millisecond
	idleAfter   = 5 * time.Millisecond
)

// A Client is told by a flow what to fetch.
type Client interface {
	// Queues returns the queues of all assigned partitions.
	Queues() []*Queue
	// Fetch tells the client how much to fetch at a time.
	Fetch(Plan)
	// PauseAll and ResumeAll are Owner.Pause and Owner.Resume for all queues together.
	PauseAll(change func(*Queue) bool)
	ResumeAll(change func(*Queue) bool)
}

// A Flow decides what the client fetches: how much, and of which partitions. The poll loop uses it.
type Flow struct {
	// Brokers is the number of brokers that are fetched from at a time.
	Brokers int

	memory  *Memory
	most    Plan
	client  Client
	queues  int // when Wait last looked at all
	wanting int // partitions that had records or starved then
}

// NewFlow returns a flow that plans fetches of a client within a limit.
func NewFlow(m *Memory, most Plan, client Client) *Flow {
	return &Flow{Brokers: 1, memory: m, most: most, client: client}
}

// Wait waits while a goroutine has enough records, or while the memory is full; a partition
// that stays full is paused. It does not wait for long if the client must be polled urgently. It plans
// the fetches that follow, and reports whether there are none until the memory has room.
func (f *Flow) Wait(ctx context.Context, urgent func() bool) (holding bool) {
	if f.queues > crowdOf && f.memory.isAlmostEmpty() { // usual if there are many partitions, and few records
		f.client.Fetch(f.memory.plan(f.wanting, f.queues, f.Brokers, f.most))
		return false
	}
	began := time.Now()
	// when no partition starved last, and when a partition that is not full last had records
	fed, busy := began, began
	for ctx.Err() == nil {
		all := f.client.Queues()
		now := time.Now()
		r := crowded(all)
		f.queues, f.wanting = len(all), r.wanting
		f.client.Fetch(f.memory.plan(r.wanting, len(all), f.Brokers, f.most))
		late := now.Sub(began) > pauseAfter || urgent()
		full := f.isFull(late)
		if len(r.full) == 0 && !full {
			break
		}
		if !r.starving {
			fed = now
		}
		if !r.starving || r.busy {
			busy = now
		}
		hurry := now.Sub(fed) > starveAfter || now.Sub(busy) > idleAfter
		pauseFull(r.full, late, hurry)
		if hurry && !full || f.memory.closed.Load() && late {
			break
		}
		f.rest(time.Since(now))
	}
	return f.memory.closed.Load()
}

// pauseFull pauses the partitions of full queues for which others should not wait.
func pauseFull(full []*Queue, late, hurry bool) {
	for _, q := range full {
		if late || q.isSlow() || q.owner.IsPaused() || hurry && q.isOver() {
			q.owner.Pause(q.pause)
		}
	}
}

// rest waits before the next look, in relation to what a look takes: there may be many queues.
func (f *Flow) rest(look time.Duration) {
	least := time.Millisecond
	if f.memory.closed.Load() {
		least = 10 * time.Millisecond
	}
	time.Sleep(max(least, 4*look))
}

// isFull reports whether the memory is full, so that the client must not be polled: it would fetch
// the next records. If that lasts, all partitions are held back, and the client may be polled for all
// else.
func (f *Flow) isFull(late bool) bool {
	closed := f.memory.closed.Load()
	switch {
	case closed && f.memory.hasRoom():
		f.client.ResumeAll((*Queue).letGo)
		f.memory.closed.Store(false)
	case closed, f.memory.IsFull() && late:
		f.client.PauseAll((*Queue).holdBack) // also those that were assigned since
		f.memory.closed.Store(true)
	}
	return f.memory.closed.Load() || f.memory.IsFull()
}

// A crowd is the state of the queues that a flow needs.
type crowd struct {
	full     []*Queue
	starving bool // a partition has no records although the broker has some for it
	busy     bool // a partition that is not full has records
	wanting  int  // partitions that have records, or starve
}

func crowded(all []*Queue) (r crowd) {
	for _, q := range all {
		starves := q.starves(q.owner.Stable())
		if starves || q.holds() {
			r.wanting++
		}
		if !q.room() {
			r.full = append(r.full, q)
			continue
		}
		if !q.owner.IsPaused() {
			r.starving = r.starving || starves
			r.busy = r.busy || q.isBusy()
		}
	}
	return r
}
