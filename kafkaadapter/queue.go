package kafkaadapter

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/kafkaadapter/internal/feed"
)

// A queue holds the fetched records of a partition between the poll loop, which fills it, and the
// partition's goroutine, which empties it. A closed queue drops records: the client's offset is set
// back before it is opened again.
type queue struct {
	wake   chan struct{} // something happened that the goroutine must look at
	memory *feed.Memory

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

// pauseAfter is how long the poll loop waits for a full queue before it stops fetching that
// partition. A pause discards the records that the client has buffered, and its end takes effect
// only with the next fetch after the one in progress. So pauses are for partitions that are stuck
// or slow, not for those that keep the machine busy. A partition that took longer than this to
// empty its queue is paused at once the next time.
const pauseAfter = time.Second

// recordBytes estimates the memory of a fetched record.
func recordBytes(r *kgo.Record) int64 {
	n := feed.RecordMemory + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 48 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}

// poppedBytes returns the size of the records that were popped last, without their copies.
func (q *queue) poppedBytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.popped / 2
}

// book tells the memory how much the queue holds. q.mu is held.
func (q *queue) book() {
	if q.bytes != q.booked {
		q.memory.Hold(q.bytes - q.booked)
		q.booked = q.bytes
	}
}

func (q *queue) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// start opens an empty queue for the records from an offset on.
func (q *queue) start(from int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	q.open, q.recs, q.n, q.bytes, q.popped, q.next, q.fault, q.paused, q.held = true, nil, 0, 0, 0, from, nil, false, false
}

// close drops the records in the queue, and all that are pushed later.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	q.open, q.recs, q.n, q.bytes, q.popped, q.fault, q.paused, q.held = false, nil, 0, 0, 0, nil, false, false
}

// push adds records. A closed queue drops them.
func (q *queue) push(recs []*kgo.Record) {
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
			q.bytes += recordBytes(r)
		}
		q.book()
	}
	q.nudge()
}

// interrupt records why no more records come: the first reason counts.
func (q *queue) interrupt(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open && q.fault == nil {
		q.fault = err
		q.nudge()
	}
}

// abort drops the records in the queue, and records why no more come.
func (q *queue) abort(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open {
		q.recs, q.n, q.bytes, q.fault = nil, 0, q.popped, err
		q.book()
		q.nudge()
	}
}

// pop takes up to n records in order, appended to dst, which is empty. The records that were popped
// before are done, and their memory is no longer counted. Once the queue is empty, fault says why
// no more come. resume is set if the client may fetch the partition again.
func (q *queue) pop(dst []*kgo.Record, n int, limit capacity) (recs []*kgo.Record, resume bool, fault error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.book()
	q.bytes -= q.popped
	q.popped = 0
	for len(q.recs) > 0 && len(dst) < n && q.popped < limit.bytes/2 {
		head := q.recs[0]
		k := 0
		for k < min(n-len(dst), len(head)) && q.popped < limit.bytes/2 {
			n := recordBytes(head[k])
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
	if q.paused && q.n <= limit.records/4 && q.bytes <= limit.bytes/4 {
		q.paused, q.slow, resume = false, time.Since(q.pausedAt) > pauseAfter, !q.held
	}
	if len(dst) == 0 {
		fault = q.fault
	}
	return dst, resume, fault
}

// A capacity is the limit of a queue; a partition whose queue has reached it is paused.
type capacity struct {
	records int
	bytes   int64
}

// full reports whether the goroutine has enough records. q.mu is held.
func (q *queue) full(limit capacity) bool { return q.n >= limit.records || q.bytes >= limit.bytes }

// room reports whether the client may be polled: the queue takes more, or its partition is paused.
func (q *queue) room(limit capacity) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.paused || !q.full(limit)
}

// holdBack pauses the partition until letGo, and reports whether it was fetched before.
func (q *queue) holdBack() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || q.held || q.fault != nil {
		return false
	}
	q.held = true
	return !q.paused
}

// letGo ends a pause by holdBack, and reports whether the client may fetch the partition again.
func (q *queue) letGo() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.held
	q.held = false
	return was && !q.paused && q.fault == nil
}

func (q *queue) isSlow() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.slow
}

// pause records that a full queue's partition is paused, and reports whether it was not paused
// before.
func (q *queue) pause(limit capacity) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.paused || !q.open || !q.full(limit) {
		return false
	}
	q.paused, q.pausedAt = true, time.Now()
	return true
}

// isIdle reports whether the goroutine has nothing to take from the queue.
func (q *queue) isIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n == 0 && q.fault == nil
}

// starves reports whether the queue is empty although the broker has records before the given
// offset that were not fetched yet.
func (q *queue) starves(stable int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open && !q.paused && q.fault == nil && q.n == 0 && q.next < stable
}

// isClosed reports whether the queue takes no records.
func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.open
}

// holds reports whether records of the queue are in memory, also of those that were popped last.
func (q *queue) holds() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes > 0
}

// isBusy reports whether the queue has records, and its partition is not paused.
func (q *queue) isBusy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n > 0 && !q.paused
}
