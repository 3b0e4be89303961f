package feed

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A fake is a partition, and what its client was told.
type fake struct {
	stable          int64
	paused, fetched bool
}

func (f *fake) Stable() int64            { return f.stable }
func (f *fake) IsPaused() bool           { return f.paused }
func (f *fake) Pause(change func() bool) { f.fetched = f.fetched && !change() }
func (f *fake) Resume(change func() bool) {
	if change() {
		f.fetched = true
	}
}

// A fakeClient has queues, and the last plan.
type fakeClient struct {
	queues []*Queue
	plan   Plan
}

func (c *fakeClient) Queues() []*Queue { return c.queues }
func (c *fakeClient) Fetch(p Plan)     { c.plan = p }

func (c *fakeClient) PauseAll(change func(*Queue) bool) {
	for _, q := range c.queues {
		q.owner.Pause(func() bool { return change(q) })
	}
}

func (c *fakeClient) ResumeAll(change func(*Queue) bool) {
	for _, q := range c.queues {
		q.owner.Resume(func() bool { return change(q) })
	}
}

func records(n, size int) (recs []*kgo.Record) {
	for i := range n {
		recs = append(recs, &kgo.Record{Offset: int64(i), Value: make([]byte, size)})
	}
	return recs
}

// opened is a queue that is fetched into.
func opened(m *Memory, stable int64) (*Queue, *fake) {
	f := &fake{stable: stable, fetched: true}
	q := NewQueue(m, f)
	q.Start(0)
	return q, f
}

func TestFlowSeesWhichPartitionsAreFullStarveOrAreBusy(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		pushed, popped       int
		stable               int64
		more                 func(*Queue, *fake)
		full, starving, busy bool
		wanting              int
	}{
		{name: "full", pushed: 4, stable: 9, full: true, wanting: 1},
		{name: "empty before the end", pushed: 3, popped: 3, stable: 9, starving: true, wanting: 1},
		{name: "empty at the end", pushed: 3, popped: 3, stable: 3, wanting: 1},
		{name: "done", pushed: 3, popped: 3, stable: 3, more: func(q *Queue, _ *fake) { q.Pop(nil, 1) }},
		{name: "busy", pushed: 3, popped: 2, stable: 9, busy: true, wanting: 1},
		{name: "before the first fetch", stable: 9, starving: true, wanting: 1},
		{name: "before the first fetch of an empty log"},
		{name: "paused", pushed: 4, stable: 9, more: func(q *Queue, f *fake) { f.Pause(q.pause) }, wanting: 1},
		{name: "interrupted", pushed: 3, popped: 3, stable: 9, more: func(q *Queue, _ *fake) { q.Interrupt(errors.New("broken")) }, wanting: 1},
		{name: "paused by the application", pushed: 3, popped: 3, stable: 9, more: func(_ *Queue, f *fake) { f.paused = true }, wanting: 1},
		{name: "closed", pushed: 3, popped: 3, stable: 9, more: func(q *Queue, _ *fake) { q.Close() }},
	} {
		q, f := opened(NewMemory(1<<30, 4), tt.stable)
		q.Push(records(tt.pushed, 0))
		q.Pop(nil, tt.popped)
		if tt.more != nil {
			tt.more(q, f)
		}
		got := crowded([]*Queue{q})
		if slices.Contains(got.full, q) != tt.full || got.starving != tt.starving || got.busy != tt.busy || got.wanting != tt.wanting {
			t.Errorf("%s: %+v; want full %v, starving %v, busy %v, wanting %d", tt.name, got, tt.full, tt.starving, tt.busy, tt.wanting)
		}
	}
}

// A full memory holds all partitions back until there is room, also one that was assigned meanwhile, and
// not one whose own queue is full.
func TestFullMemoryHoldsAllPartitionsBack(t *testing.T) {
	m := NewMemory(1<<20, 1000)
	client := &fakeClient{}
	flow := NewFlow(m, Plan{1 << 20, 1 << 20}, client)
	a, fa := opened(m, 9)
	b, fb := opened(m, 9)
	client.queues = []*Queue{a, b}
	wait := func(urgent bool) (holding bool) {
		return flow.Wait(context.Background(), func() bool { return urgent })
	}
	if wait(false) || !fa.fetched || !fb.fetched || client.plan.Fetch <= 1 {
		t.Errorf("an empty memory: %v %v, plan %+v", fa.fetched, fb.fetched, client.plan)
	}
	a.Push(records(16, 1<<16))
	if !wait(true) || fa.fetched || fb.fetched || client.plan.Fetch != 1 {
		t.Errorf("a full memory: %v %v, plan %+v", fa.fetched, fb.fetched, client.plan)
	}
	c, fc := opened(m, 9)
	if client.queues = append(client.queues, c); !wait(true) || fc.fetched {
		t.Error("a new partition is not held back")
	}
	b.Close()
	b.Start(5) // it was looked up again
	fb.fetched = true
	if !wait(true) || fb.fetched {
		t.Error("a partition that was opened again is not held back")
	}
	if a.Pop(nil, 16); !wait(true) {
		t.Error("the records that were popped last are not counted")
	}
	for range 16 { // some at a time
		a.Pop(nil, 16)
	}
	a.Interrupt(errors.New("broken"))
	if wait(false) || fa.fetched || !fb.fetched || !fc.fetched {
		t.Errorf("a memory with room: %v %v %v", fa.fetched, fb.fetched, fc.fetched)
	}
}

// The first fetch after an assignment is planned for the partitions that were assigned: they share the
// memory.
func TestFirstFetchIsDividedAmongTheAssigned(t *testing.T) {
	for _, n := range []int{64, 10000} {
		m := NewMemory(16<<20, 1000)
		client := &fakeClient{}
		flow := NewFlow(m, Plan{16 << 20, 16 << 20}, client)
		wait := func() { flow.Wait(t.Context(), func() bool { return false }) }
		wait() // nothing is assigned
		for range n {
			q, _ := opened(m, 1000)
			client.queues = append(client.queues, q)
		}
		wait()
		want := NewMemory(16<<20, 1000).plan(n, n, 1, Plan{16 << 20, 16 << 20})
		if client.plan != want || m.share.Load() != m.most/2/int64(n) {
			t.Errorf("%d partitions: %+v, want %+v, and shares of %d bytes", n, client.plan, want, m.share.Load())
		}
	}
}

func TestQueueGivesBackWhatItHolds(t *testing.T) {
	m := NewMemory(1<<30, 1000)
	q, _ := opened(m, 9)
	held := func(what string, want int64) {
		t.Helper()
		if _, n := q.Size(); n != want || m.held.Load() != want {
			t.Errorf("%s: the queue holds %d bytes, the memory %d, want %d", what, n, m.held.Load(), want)
		}
	}
	one := RecordBytes(&kgo.Record{Value: make([]byte, 100)})
	q.Push(records(10, 100))
	held("pushed", 10*one)
	q.Pop(nil, 4)
	held("popped, with copies", 14*one)
	if got := q.PoppedBytes(); got != 4*one {
		t.Errorf("%d bytes were popped", got)
	}
	q.Pop(nil, 1)
	held("the first are done", 7*one)
	q.Abort(errors.New("changed"))
	held("aborted, the popped one is in use", 2*one)
	if recs, err := q.Pop(nil, 1); len(recs) > 0 || err == nil {
		t.Errorf("%d records after the queue was aborted, %v", len(recs), err)
	}
	held("done", 0)
	q.Start(10)
	q.Push(records(10, 100))
	q.Close()
	held("closed", 0)
	if q.Push(records(1, 1)); !q.IsIdle() || q.IsFetched() {
		t.Error("a closed queue takes records")
	}
}

// Partitions that are not read drop their records while the memory IsFull. So that they do, it is
// full for as long as the flow holds the others back.
func TestMemoryIsFullWhileAFlowHoldsPartitionsBack(t *testing.T) {
	m := NewMemory(1<<20, 1000)
	client := &fakeClient{}
	flow := NewFlow(m, Plan{1 << 20, 1 << 20}, client)
	for range 32 {
		q, _ := opened(m, 1000)
		q.Push(records(1, 1<<15))
		client.queues = append(client.queues, q)
	}
	wait := func() bool { return flow.Wait(t.Context(), func() bool { return true }) }
	if !m.IsFull() || !wait() {
		t.Fatal("the memory is not full")
	}
	for i, q := range client.queues {
		if !m.IsFull() {
			break
		}
		if q.Close(); i == 0 && (!m.IsFull() || m.held.Load() >= m.most) {
			t.Errorf("%d of %d bytes are held, and full is %v", m.held.Load(), m.most, m.IsFull())
		}
	}
	if m.IsFull() || !m.hasRoom() || wait() {
		t.Errorf("%d of %d bytes are held, and all partitions are held back", m.held.Load(), m.most)
	}
}

// A meddler is a partition to which something happens right before its client is told to fetch it.
type meddler struct {
	fake
	before func(*meddler)
}

func (m *meddler) Resume(change func() bool) {
	if m.before != nil {
		m.before(m)
	}
	m.fake.Resume(change)
}

func TestEndOfAPauseDoesNotUndoWhatHappensMeanwhile(t *testing.T) {
	var q *Queue
	for name, before := range map[string]func(*meddler){
		"held back":   func(f *meddler) { f.fetched = !q.holdBack() && f.fetched },
		"interrupted": func(f *meddler) { f.fetched = false; q.Interrupt(errors.New("broken")) },
		"closed":      func(f *meddler) { f.fetched = false; q.Close() },
	} {
		m := NewMemory(1<<30, 8)
		f := &meddler{fake: fake{stable: 1000, fetched: true}}
		q = NewQueue(m, f)
		q.Start(0)
		q.Push(records(8, 0))
		q.owner.Pause(q.pause)
		f.before = before
		if q.Pop(nil, 8); f.fetched {
			t.Errorf("%s: the client fetches the partition", name)
		}
	}
}

func TestDroppedQueueCountsWhatWasPopped(t *testing.T) {
	m := NewMemory(1<<20, 1000)
	q, _ := opened(m, 1000)
	q.Push(records(4, 1000))
	q.Pop(nil, 1)
	q.Drop()
	if _, bytes := q.Size(); bytes != 2*q.PoppedBytes() || m.held.Load() != bytes || bytes == 0 {
		t.Errorf("%d bytes are counted, %d held", bytes, m.held.Load())
	}
	if q.Close(); m.held.Load() != 0 {
		t.Errorf("%d bytes are held", m.held.Load())
	}
}
