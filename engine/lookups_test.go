package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// atOnce makes look-ups wait until two of them are in progress, and then calls then.
func atOnce(m *storetest.Mem, then func() error) (inside *atomic.Int32) {
	inside = new(atomic.Int32)
	both := make(chan struct{})
	var once sync.Once
	m.Before(storetest.OpClaim, func(int) error {
		defer inside.Add(-1)
		if inside.Add(1) > 1 {
			once.Do(func() { close(both) })
		}
		select {
		case <-both:
			return then()
		case <-time.After(10 * time.Second):
			return errors.New("no other look-up")
		}
	})
	return inside
}

// oldAndNew returns n events, all of which the engine has claimed, each followed by a new one.
func oldAndNew(t *testing.T, e *engine.Engine, n int) (events []engine.Event) {
	old := manyEvents(n)
	mustExpect(t, e, old, engine.Claimed)
	for i, ev := range old {
		events = append(events, ev, event(fmt.Sprint("new ", i)))
	}
	return events
}

func TestManyOldEventsAreLookedUpAtOnce(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	events := oldAndNew(t, e, 1000)
	atOnce(m, func() error { return nil })
	results, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []engine.Verdict{engine.Duplicate, engine.Claimed} {
		for ; i < len(results); i += 2 {
			wantVerdict(t, results[i], want)
		}
	}
	looked := m.Calls(storetest.OpClaim)
	mustExpect(t, e, events[:100], engine.Duplicate) // from the cache; the new ones from the store
	if n := m.Calls(storetest.OpClaim) - looked; n > 50 {
		t.Errorf("of 100 events, 50 of which were looked up before, %d were looked up", n)
	}
}

func TestPanicInALookUpReachesTheCaller(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	events := oldAndNew(t, e, 200)
	inside := atOnce(m, func() error { panic(errBoom) })
	func() {
		defer func() {
			if p := recover(); p != errBoom { //nolint:errorlint // the very value that was thrown
				t.Errorf("the panic became %v", p)
			}
		}()
		_, _ = e.TryClaimBatch(ctx, events)
	}()
	if n := inside.Load(); n != 0 {
		t.Errorf("%d look-ups are in progress after it", n)
	}
	m.Before(storetest.OpClaim, nil)
	mustExpect(t, e, events[:1], engine.Duplicate)
}

func TestFailedLookUpEndsTheBatchWhenAllHaveEnded(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	events := oldAndNew(t, e, 200)
	var failed atomic.Bool
	inside := atOnce(m, func() error {
		if failed.CompareAndSwap(false, true) {
			return errBoom
		}
		time.Sleep(10 * time.Millisecond) // the other one is still in progress
		return nil
	})
	results, err := e.TryClaimBatch(ctx, events)
	if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, errBoom) {
		t.Fatalf("the error is %v", err)
	}
	for _, r := range results {
		wantVerdict(t, r, engine.Failed)
	}
	if n := inside.Load(); n != 0 {
		t.Errorf("%d look-ups are in progress after it", n)
	}
}

// The first event of a batch takes a claim over that the second one alone could not take: the second is
// judged by the claim of the first.
func TestTheSecondEventOfABatchIsJudgedByTheClaimThatTheFirstTakesOver(t *testing.T) {
	other := func(ev engine.Event) engine.Event {
		ev.Fingerprint = "other"
		return ev
	}
	leased := event("a")
	leased.Lease, leased.Fingerprint = time.Hour, "x"
	lastWeek, today := leased, event("a")
	lastWeek.Time, today.ApproximateTime = noon.AddDate(0, 0, -7), true
	sent := windowed("a", time.Hour)
	sent.Sent = noon.Add(-time.Minute)
	for name, c := range map[string]struct{ first, takes, next engine.Event }{
		"a lease that has ended, of another fingerprint":         {leased, event("a"), other(event("a"))},
		"such a lease in the week before":                        {lastWeek, today, other(today)},
		"a window that has ended, of a copy that was sent in it": {sent, windowed("a", time.Hour), sent},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, clock := openAt(t, engine.Options{})
			wantVerdict(t, claim(t, e, c.first), engine.Claimed)
			clock.set(noon.Add(time.Hour))
			rs, err := e.TryClaimBatch(ctx, []engine.Event{c.takes, c.next})
			if err != nil {
				t.Fatal(err)
			}
			if rs[0].Verdict != engine.Claimed || rs[1].Verdict != engine.Duplicate || rs[1].Record != rs[0].Record {
				t.Errorf("the first is %v of %+v, the second %v of %+v", rs[0].Verdict, rs[0].Record, rs[1].Verdict, rs[1].Record)
			}
		})
	}
}
