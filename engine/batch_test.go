package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func manyEvents(n int) []engine.Event {
	events := make([]engine.Event, n)
	for i := range events {
		events[i] = event(fmt.Sprint("event-", i))
	}
	return events
}

// Of a batch whose context ends, each event is claimed for its caller or can be claimed by the next.
func TestBatchWhoseContextEndsInTheMiddle(t *testing.T) {
	for _, size := range []int{512, 2*engine.MaxBatchEvents + 10} {
		during, cancel := context.WithCancel(ctx)
		var asked atomic.Int32
		e, _ := openMem(t, engine.Options{Clock: func() time.Time {
			if asked.Add(1) == 3 { // the first is Open's, the second the first part's
				cancel()
			}
			return noon
		}})
		events := manyEvents(size)
		results, err := e.TryClaimBatch(during, events)
		answered := err == nil && size <= engine.MaxBatchEvents // all verdicts came before the caller left
		if !answered && !errors.Is(err, context.Canceled) || len(results) != size {
			t.Fatalf("%d events: %d results, %v", size, len(results), err)
		}
		again, err := e.TryClaimBatch(ctx, events)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			claimed := r.Verdict == engine.Claimed
			if !claimed && !errors.Is(r.Err, context.Canceled) || claimed != (again[i].Verdict == engine.Duplicate) || !claimed && again[i].Verdict != engine.Claimed {
				t.Fatalf("event %d of %d: %v, then %v", i, size, r, again[i])
			}
		}
	}
}

// syncs is called for each batch of the store that became durable.
type syncs chan struct{}

func (syncs) Claiming(context.Context, []engine.Event) func([]engine.Result) { return nil }

func (syncs) Updating(context.Context) engine.TxObserver { return engine.TxObserver{} }

func (s syncs) Synced(time.Duration, int) { s <- struct{}{} }

// A store that fails in the middle of a batch does not change the earlier verdicts.
func TestBatchInWhichTheStoreFailsReturnsTheDecidedVerdicts(t *testing.T) {
	for _, c := range []struct{ size, decided int }{
		{2 * engine.FewGroupClaims, engine.FewGroupClaims},
		{engine.MaxBatchEvents + 300, engine.MaxBatchEvents},
	} {
		full := errors.New("no space left")
		m := storetest.NewMem(storage.Identity{})
		synced := make(syncs, 1000)
		var asked atomic.Int32
		e := open(t, m, engine.Options{Observer: synced, Clock: func() time.Time {
			// The first call is Open's; each part calls it once. In the call after those for the
			// decided parts, the store fails.
			if asked.Add(1) == int32(c.decided/256)+2 {
				<-synced
				m.Fail(full)
			}
			return noon
		}})
		e.AwaitBehind(t)
		events := manyEvents(c.size)
		results, err := e.TryClaimBatch(ctx, events)
		if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, full) || len(results) != c.size {
			t.Fatalf("%d results, %v", len(results), err)
		}
		for i, r := range results {
			if want := i < c.decided; want != (r.Verdict == engine.Claimed) || !want && (r.Verdict != engine.Failed || !errors.Is(r.Err, full)) {
				t.Fatalf("event %d of %d: %v %v", i, c.size, r.Verdict, r.Err)
			}
		}
		s, _ := e.Stats()
		if counted := s.Verdicts; counted[engine.Claimed] != uint64(c.decided) {
			t.Errorf("%v counted, want %d claimed", counted, c.decided)
		}
		mustExpect(t, open(t, m.Crash(), engine.Options{}), events[:c.decided], engine.Duplicate)
	}
}

// If the look-ups for a later part of a batch fail before the write of an earlier part does, the
// claims of that may be durable, and the error says so.
func TestBatchWhoseLookUpFailsDuringACommitHasAnUnknownOutcome(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	events := manyEvents(engine.FewGroupClaims + 1)
	known := events[engine.FewGroupClaims] // alone in the last part
	claim(t, open(t, m, engine.Options{}), known)
	m = m.CrashClone(0)
	var asked atomic.Int32
	e := open(t, m, engine.Options{Clock: func() time.Time {
		if asked.Add(1) == engine.FewGroupClaims/256+1 { // each part calls it once
			awaitHeld(t, m)
			m.FailAt(storetest.OpClaim, 1, errDisk)
		}
		return noon
	}})
	e.AwaitBehind(t)
	m.HoldSyncs()
	b := e.StartClaimBatch(ctx, events)
	written := m.CrashClone(1)
	m.Fail(errDisk)
	results, err := b.Wait(ctx)
	if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, engine.ErrOutcomeUnknown) {
		t.Errorf("the batch: %v", err)
	}
	for i, r := range results {
		if r.Verdict != engine.Failed || !errors.Is(r.Err, engine.ErrOutcomeUnknown) {
			t.Fatalf("event %d: %v, %v", i, r.Verdict, r.Err)
		}
	}
	mustExpect(t, open(t, written, engine.Options{}), events[:1], engine.Duplicate)
}
