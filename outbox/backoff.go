package outbox

import (
	"container/heap"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hapax-dev/hapax/internal/entry"
)

// delay returns how long to wait after the given number of failures: exponential, jittered by half,
// between Min and Max.
func (r *Retry) delay(failures uint64) time.Duration {
	b := &backoff.ExponentialBackOff{InitialInterval: r.Min, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: r.Max}
	var d time.Duration
	for range min(max(failures, 1), 64) { // 2^64 times Min exceeds every Max
		d = b.NextBackOff()
	}
	return min(max(d, r.Min), r.Max)
}

// A group has held entries at the places from first to before next.
type group struct {
	id          entry.Group
	first, next uint64
	notBefore   int64     // atOnce: the first one's last transaction failed because of another entry
	turn        uint64    // orders groups with the same notBefore
	rest        int64     // the NotBefore of the first entry that the batch has not taken
	due         int64     // due time of the first entry
	index       int       // its index in the heap; -1 while a batch processes it
	head        *item     // the first remaining item of the batch
	on          partition // the held partition for which the first entry waits
}

const atOnce = 0

// remains records that an item of the batch still exists.
func (g *group) remains(i *item) {
	if g.head == nil {
		g.head = i
	}
}

// backoffs are the held groups by the ends of their backoffs.
type backoffs struct {
	groups groupHeap
	pushes uint64
}

func (b *backoffs) push(g *group) {
	b.pushes++
	g.turn = b.pushes
	heap.Push(&b.groups, g)
}

func (b *backoffs) remove(g *group) { heap.Remove(&b.groups, g.index) }

// due returns the group whose backoff ended first, or nil if no backoff has ended.
func (b *backoffs) due(now int64) *group {
	if len(b.groups) == 0 || b.groups[0].notBefore > now {
		return nil
	}
	return b.groups[0]
}

// bound moves the ends of backoffs that are after at to at. Ends that had passed at the time was
// remain passed: they are moved to now if they are after it.
func (b *backoffs) bound(was, now, at int64) {
	for _, g := range b.groups {
		if g.notBefore <= was {
			g.notBefore = min(g.notBefore, now)
		}
		g.notBefore = min(g.notBefore, at)
	}
	heap.Init(&b.groups)
}

// next returns the end of the next backoff, 0 if there is none.
func (b *backoffs) next() int64 {
	if len(b.groups) == 0 {
		return 0
	}
	return max(b.groups[0].notBefore, 1)
}

// release makes the groups that wait for the given partitions due now.
func (q *queue) release(all []partition) {
	if len(all) == 0 {
		return
	}
	released := make(map[partition]bool, 1)
	for _, p := range all {
		released[p] = true
	}
	for _, g := range q.backoff.groups {
		if g.on != (partition{}) && released[g.on] {
			g.notBefore, g.on = min(g.notBefore, q.now), partition{}
		}
	}
	heap.Init(&q.backoff.groups)
}

type groupHeap []*group

func (h groupHeap) Len() int { return len(h) }

func (h groupHeap) Less(i, j int) bool {
	if h[i].notBefore == h[j].notBefore {
		return h[i].turn < h[j].turn
	}
	return h[i].notBefore < h[j].notBefore
}

func (h groupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *groupHeap) Push(x any) {
	g := x.(*group)
	g.index = len(*h)
	*h = append(*h, g)
}

func (h *groupHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	g.index = -1
	return g
}
