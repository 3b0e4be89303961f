package feed

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An Owner is the assigned partition of a queue.
type Owner interface {
	// Stable is the last stable offset, as the broker has reported it.
	Stable() int64
	// IsPaused reports whether the application has paused the partition.
	IsPaused() bool
	// Pause and Resume tell the client whether to fetch the partition, if the assignment is the current
	// one and change, which does not block, returns true.
	Pause(change func() bool)
	Resume(change func() bool)
}

// A Queue holds the fetched records of a partition between the poll loop, which fills it, and the
// partition's goroutine, which empties it. A closed queue drops records: the client's offset is set
// back before it is opened again.
type Queue struct {
	C <-chan struct{} // something happened that the goroutine must look at

	c      chan struct{}
	memory *Memory
	owner  Owner

	mu     sync.Mutex // guards the rest
	open   bool
	recs   [][]*kgo.Record
	n      int
	bytes  int64 // of the records in the queue and of those that were popped last, with their copies
	popped int64 // of the popped ones
	booked int64 // what the memory knows of bytes
	// the offset after the last record that was pushed; at first, the offset at which reading
	// begins
	next     int64
	fault    error // why no more records come after those in the queue
	paused   bool
	pausedAt time.Time
	held     bool // paused because the memory of all partitions is full
	slow     bool // the goroutine took longer than pauseAfter to empty a full queue
}

// NewQueue returns a closed queue.
func NewQueue(m *Memory, owner Owner) *Queue {
	c := make(chan struct{}, 1)
	return &Queue{C: c, c: c, memory: m, owner: owner}
}

// pauseAfter is how long the poll loop waits for a full queue before it stops fetching that
// partition. A pause discards the records that the client has buffered, and its end takes effect
// only with the next fetch after the one in progress. So pauses are for partitions that are stuck
// or slow, not for those that keep the machine busy. A partition that took longer than this to
// empty its queue is paused at once the next time.
const pauseAfter = time.Second

// RecordBytes estimates the memory of a fetched record.
func RecordBytes(r *kgo.Record) int64 {
	n := recordMemory + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 48 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}

// PoppedBytes returns the size of the records that were popped last, without their copies.
func (q *Queue) PoppedBytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.popped / 2
}

// book tells the memory how much the queue holds. q.mu is held.
func (q *Queue) book() {
	if q.bytes != q.booked {
		q.memory.hold(q.bytes - q.booked)
		q.booked = q.bytes
	}
}

// Wake makes the goroutine look at what has happened.
func (q *Queue) Wake() {
	select {
	case q.c <- struct{}{}:
	default:
	}
}

// Start opens an empty queue for the records from an offset on.
func (q *Queue) Start(from int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	q.open, q.recs, q.n, q.bytes, q.popped, q.next, q.fault, q.paused, q.held = true, nil, 0, 0, 0, from, nil, false, false
}

// Close drops the records in the queue, and all that are pushed later.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	q.open, q.recs, q.n, q.bytes, q.popped, q.fault, q.paused, q.held = false, nil, 0, 0, 0, nil, false, false
}

// Drop is Close for a queue whose goroutine may still use the records that were popped last: the memory
// counts these until Close.
func (q *Queue) Drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	q.open, q.recs, q.n, q.bytes, q.fault, q.paused, q.held = false, nil, 0, q.popped, nil, false, false
}

// Push adds records. A closed queue drops them.
func (q *Queue) Push(recs []*kgo.Record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || q.fault != nil {
		return
	}
	if len(recs) > 0 {
		q.recs = append(q.recs, recs)
		q.n += len(recs)
		q.next = recs[len(recs)-1].Offset + 1
		for _, r := range recs {
			q.bytes += RecordBytes(r)
		}
		q.book()
	}
	q.Wake()
}

// Interrupt records why no more records come: the first reason counts.
func (q *Queue) Interrupt(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open && q.fault == nil {
		q.fault = err
		q.Wake()
	}
}

// Abort drops the records in the queue, and records why no more come.
func (q *Queue) Abort(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open {
		q.recs, q.n, q.bytes, q.fault = nil, 0, q.popped, err
		q.book()
		q.Wake()
	}
}

// Pop takes up to n records in order, appended to dst, which is empty. The records that were popped
// before are done, and their memory is no longer counted. Once the queue is empty, fault says why
// no more come.
func (q *Queue) Pop(dst []*kgo.Record, n int) (recs []*kgo.Record, fault error) {
	recs, resume, fault := q.pop(dst, n)
	if resume {
		q.owner.Resume(q.mayBeFetched)
	}
	return recs, fault
}

// mayBeFetched reports whether nothing has happened since the end of a pause that pauses the partition
// again.
func (q *Queue) mayBeFetched() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open && !q.paused && !q.held && q.fault == nil
}

// pop reports in addition whether the client may fetch the partition again.
func (q *Queue) pop(dst []*kgo.Record, n int) (recs []*kgo.Record, resume bool, fault error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	part := q.memory.aPart()
	share, batch := max(part, q.memory.share.Load()), max(part, q.memory.batch.Load())
	q.bytes -= q.popped
	q.popped = 0
	for len(q.recs) > 0 && len(dst) < n && q.popped < batch {
		head := q.recs[0]
		k := 0
		for k < min(n-len(dst), len(head)) && q.popped < batch {
			n := RecordBytes(head[k])
			q.popped += 2 * n // with the copy of which hands tells
			q.bytes += n
			k++
		}
		dst = append(dst, head[:k]...)
		clear(head[:k])
		q.n -= k
		if q.recs[0] = head[k:]; k == len(head) {
			q.recs[0] = nil
			q.recs = q.recs[1:]
		}
	}
	if q.paused && q.n <= q.memory.records/4 && q.bytes <= share/4 {
		q.paused, q.slow, resume = false, time.Since(q.pausedAt) > pauseAfter, !q.held
	}
	if len(dst) == 0 {
		fault = q.fault
	}
	return dst, resume, fault
}

// full reports whether the goroutine has enough records. q.mu is held.
func (q *Queue) full() bool { return q.n >= q.memory.records || q.hasShare() }

// hasShare reports whether the queue has used its share of the memory. q.mu is held.
func (q *Queue) hasShare() bool {
	return q.bytes >= q.memory.share.Load() && q.bytes >= q.memory.aPart()
}

// room reports whether the client may be polled: the queue takes more, or its partition is paused.
func (q *Queue) room() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.paused || !q.full()
}

// isOver reports whether the queue has used its share of the memory, and its partition is not paused.
func (q *Queue) isOver() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.paused && q.hasShare()
}

// holdBack pauses the partition until letGo, and reports whether it was fetched before.
func (q *Queue) holdBack() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || q.held || q.fault != nil {
		return false
	}
	q.held = true
	return !q.paused
}

// letGo ends a pause by holdBack, and reports whether the client may fetch the partition again.
func (q *Queue) letGo() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.held
	q.held = false
	return was && !q.paused && q.fault == nil
}

func (q *Queue) isSlow() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slow
}

// pause records that a full queue's partition is paused, and reports whether it was not paused
// before.
func (q *Queue) pause() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.paused || !q.open || !q.full() {
		return false
	}
	q.paused, q.pausedAt = true, time.Now()
	return true
}

// IsIdle reports whether the goroutine has nothing to take from the queue.
func (q *Queue) IsIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n == 0 && q.fault == nil
}

// starves reports whether the queue is empty although the broker has records before the given
// offset that were not fetched yet.
func (q *Queue) starves(stable int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open && !q.paused && q.fault == nil && q.n == 0 && q.next < stable
}

// holds reports whether records of the queue are in memory, also of those that were popped last.
func (q *Queue) holds() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes > 0
}

// isBusy reports whether the queue has records, and its partition is not paused.
func (q *Queue) isBusy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n > 0 && !q.paused
}

// Size returns the number of records that wait in the queue, and the memory of all that it counts.
func (q *Queue) Size() (n int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n, q.bytes
}

// IsFetched reports whether the queue takes records, and its partition is not paused.
func (q *Queue) IsFetched() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open && !q.paused && !q.held
}
