package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// wantLeft fails the test unless the call returns the error of its context.
func wantLeft(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", what, err)
	}
}

// left claims events in a call that ends with its context after stalled has returned.
func left(t testing.TB, e *engine.Engine, stalled func(), events ...engine.Event) {
	t.Helper()
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		results, err := e.TryClaimBatch(during, events)
		for i, r := range results {
			if r.Verdict != engine.Failed {
				t.Errorf("event %d: %v", i, r.Verdict)
			}
		}
		done <- err
	}()
	stalled()
	cancel()
	wantLeft(t, "the stalled call", receive(t, done))
}

// awaitNoRisk waits until all claims whose callers have left are withdrawn.
func awaitNoRisk(t testing.TB, e *engine.Engine) {
	t.Helper()
	for end := time.Now().Add(engine.Patience); stats(t, e).AtRisk > 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d events are at risk", stats(t, e).AtRisk)
		}
	}
}

// A stall is a store that does not go on: resume ends it, stalled waits until it has begun.
type stall struct {
	begin, stalled, resume func()
}

func stalls(t *testing.T, m *storetest.Mem) map[string]stall {
	var mu sync.Mutex
	var block, reached chan struct{}
	m.Before(storetest.OpApply, func(int) error {
		mu.Lock()
		b, r := block, reached
		mu.Unlock()
		if b != nil {
			select {
			case r <- struct{}{}:
			default:
			}
			<-b
		}
		return nil
	})
	return map[string]stall{
		"sync": {m.HoldSyncs, func() { awaitHeld(t, m) }, m.ReleaseSyncs},
		"apply": {
			func() { mu.Lock(); block, reached = make(chan struct{}), make(chan struct{}, 1); mu.Unlock() },
			func() { receive(t, reached) },
			func() { mu.Lock(); close(block); block = nil; mu.Unlock() },
		},
	}
}

func TestAClaimWhoseCallerHasLeftIsWithdrawn(t *testing.T) {
	for _, name := range []string{"sync", "apply"} {
		for _, ev := range []engine.Event{event("a"), leasedEvent("a"), windowed("a", time.Hour), arriving("a", time.Hour)} {
			e, m, _ := openAt(t, engine.Options{})
			s := stalls(t, m)[name]
			s.begin()
			left(t, e, s.stalled, ev)
			if n := stats(t, e).AtRisk; n != 1 {
				t.Errorf("%s: %d events at risk", name, n)
			}
			s.resume()
			wantVerdict(t, claim(t, e, ev), engine.Claimed) // at once
			awaitNoRisk(t, e)
			want := engine.Duplicate
			if ev.Lease > 0 {
				want = engine.Pending
			}
			wantVerdict(t, claim(t, e, ev), want)
			verifyClean(t, e, 1)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAnEventWhoseCallerLeavesBeforeItsTurnIsNotClaimed(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	s := stalls(t, m)["apply"]
	s.begin()
	first := make(chan engine.Result, 1)
	go func() { first <- claim(t, e, event("first")) }()
	s.stalled()
	var all []engine.Event
	for i := range 30000 { // more than the committer takes
		all = append(all, event(fmt.Sprint(i)))
	}
	during, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err := e.TryClaimBatch(during, all)
	wantLeft(t, "the batch", err)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = e.TryClaim(short, event("late"))
	wantLeft(t, "the claim", err)
	during, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	started := make(chan *engine.ClaimBatch, 1)
	go func() { started <- e.StartClaimBatch(during, manyEvents(30000)) }()
	b := receive(t, started)
	s.resume()
	wantVerdict(t, receive(t, first), engine.Claimed)
	results, err := b.Wait(ctx)
	wantLeft(t, "the started batch", err)
	awaitNoRisk(t, e)
	claimed := 1
	for _, r := range results {
		if r.Verdict == engine.Claimed {
			claimed++
		}
	}
	verifyClean(t, e, claimed)
	wantVerdict(t, claim(t, e, event("late")), engine.Claimed)
	mustExpect(t, e, all, engine.Claimed)
}

// A call that finds the claim of a caller who leaves does not return Duplicate.
func TestNoDuplicateOfAClaimWhoseCallerHasLeft(t *testing.T) {
	ev := event("a")
	tx := func(o engine.UpdateOptions) func(e *engine.Engine) engine.Verdict {
		return func(e *engine.Engine) (v engine.Verdict) {
			err := e.Update(ctx, func(tx *engine.Tx) error {
				r, err := tx.TryClaim(ev)
				v = r.Verdict
				return err
			}, o)
			if err != nil {
				return engine.Failed
			}
			return v
		}
	}
	for name, c := range map[string]struct {
		try  func(e *engine.Engine) engine.Verdict
		want engine.Verdict
	}{
		"TryClaim": {func(e *engine.Engine) engine.Verdict { r, _ := e.TryClaim(ctx, ev); return r.Verdict }, engine.Claimed},
		"TryClaimBatch": {func(e *engine.Engine) engine.Verdict {
			rs, _ := e.TryClaimBatch(ctx, []engine.Event{event("b"), ev})
			return rs[1].Verdict
		}, engine.Claimed},
		"StartClaimBatch": {func(e *engine.Engine) engine.Verdict {
			rs, _ := e.StartClaimBatch(ctx, []engine.Event{event("b"), ev}).Wait(ctx)
			return rs[1].Verdict
		}, engine.InFlight},
		"Update":                  {tx(engine.UpdateOptions{}), engine.InFlight},
		"AllowUnsyncedDuplicates": {tx(engine.UpdateOptions{AllowUnsyncedDuplicates: true}), engine.InFlight},
	} {
		for _, wait := range []bool{true, false} {
			e, m := openMem(t, engine.Options{})
			m.HoldSyncs()
			during, cancel := context.WithCancel(ctx)
			gone, verdict := make(chan error, 1), make(chan engine.Verdict, 1)
			go func() { _, err := e.TryClaim(during, ev); gone <- err }()
			awaitHeld(t, m)
			reads := m.Calls(storetest.OpClaim)
			go func() { verdict <- c.try(e) }() // before the first one leaves
			for wait && m.Calls(storetest.OpClaim) == reads {
				runtime.Gosched()
			}
			cancel()
			wantLeft(t, "the first", receive(t, gone))
			m.ReleaseSyncs()
			got := receive(t, verdict)
			if wait && got != c.want || got != engine.Claimed && got != engine.InFlight {
				t.Errorf("%s: %v", name, got)
			}
			awaitNoRisk(t, e)
			if got != engine.Claimed {
				wantVerdict(t, claim(t, e, ev), engine.Claimed)
			}
			wantVerdict(t, claim(t, e, ev), engine.Duplicate)
		}
	}
}

func TestACrashBeforeTheWithdrawalLeavesTheClaim(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	left(t, e, func() { awaitHeld(t, m) }, event("a"))
	if n := stats(t, e).AtRisk; n != 1 {
		t.Errorf("%d events at risk", n)
	}
	wantVerdict(t, claim(t, open(t, m.CrashClone(100), engine.Options{}), event("a")), engine.Duplicate)
	m.ReleaseSyncs()
	awaitNoRisk(t, e)
	wantVerdict(t, claim(t, open(t, m.CrashClone(0), engine.Options{}), event("a")), engine.Claimed)
}

func TestCloseWithdrawsClaimsWhoseCallersHaveLeft(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	left(t, e, func() { awaitHeld(t, m) }, event("a"), event("b"))
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	m.ReleaseSyncs()
	if err := receive(t, closed); err != nil {
		t.Fatal(err)
	}
	again := open(t, m.Crash(), engine.Options{})
	mustExpect(t, again, []engine.Event{event("a"), event("b")}, engine.Claimed)
	verifyClean(t, again, 2)
}

func TestOtherCallsEndWithTheirContextWhileTheStoreIsStalled(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	var leases []*engine.Lease
	for i := range 3 {
		leases = append(leases, claim(t, e, leasedEvent(fmt.Sprint(i))).Lease)
	}
	m.HoldSyncs()
	gone := make(chan engine.Verdict, 1)
	go func() { r, _ := e.TryClaim(ctx, event("a")); gone <- r.Verdict }()
	awaitHeld(t, m)
	for name, call := range map[string]func(ctx context.Context) error{
		"Finish":  func(ctx context.Context) error { return e.Finish(ctx, leases[0], nil) },
		"Release": func(ctx context.Context) error { return e.Release(ctx, leases[1]) },
		"Renew":   func(ctx context.Context) error { _, err := e.Renew(ctx, leases[2], time.Hour); return err },
		"an Update that reads": func(ctx context.Context) error {
			return e.Update(ctx, func(tx *engine.Tx) error { _, _, err := tx.Get([]byte("k")); return err })
		},
		"a duplicate in an Update": func(ctx context.Context) error {
			return e.Update(ctx, func(tx *engine.Tx) error { _, err := tx.TryClaim(event("a")); return err })
		},
	} {
		during, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- call(during) }()
		if !strings.Contains(name, "Update") {
			e.AwaitCallers(t, 2) // it and the first one
		}
		cancel()
		err := receive(t, done)
		wantLeft(t, name, err)
		if unknown := errors.Is(err, engine.ErrOutcomeUnknown); unknown != (name == "Finish" || name == "Release" || name == "Renew") {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.ReleaseSyncs()
	if v := receive(t, gone); v != engine.Claimed {
		t.Error(v)
	}
	// the outcomes are unknown: the calls took effect, or ended before the committer had seen them
	if v := claim(t, e, leasedEvent("0")).Verdict; v != engine.Duplicate && v != engine.Pending {
		t.Errorf("after Finish: %v", v)
	}
	if v := claim(t, e, leasedEvent("1")).Verdict; v != engine.Claimed && v != engine.Pending {
		t.Errorf("after Release: %v", v)
	}
}

// An update whose context ends before its commit is decided applies nothing, and its claims are free
// when the committer has taken note.
func TestAnUpdateWhoseContextEndsBeforeItsCommitIsDecided(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	s := stalls(t, m)["apply"]
	s.begin()
	var wg sync.WaitGroup
	fill := func(n int) { // the group that is open, and the queue
		wg.Go(func() { _, _ = e.TryClaimBatch(ctx, manyEvents(n)) })
	}
	fill(1)
	s.stalled()
	for range 3 {
		fill(engine.MaxBatchEvents)
	}
	var events []engine.Event
	for i := range 3 * engine.MaxBatchEvents {
		events = append(events, event(fmt.Sprint("fill-", i)))
	}
	wg.Go(func() { _, _ = e.TryClaimBatch(ctx, events) })
	undecided := 0
	for i := range 100 {
		during, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			done <- e.Update(during, func(tx *engine.Tx) error {
				_, err := tx.TryClaim(event(fmt.Sprint("tx", i)))
				return err
			})
		}()
		select {
		case err := <-done:
			wantLeft(t, "the update", err)
			undecided++
		case <-time.After(100 * time.Millisecond): // it was decided
		}
		if undecided == 3 {
			break
		}
	}
	s.resume()
	wg.Wait()
	if undecided < 3 {
		t.Fatal("every commit was decided while the store was stalled")
	}
	for i := range 100 {
		for { // until the committer has dropped it
			r := claim(t, e, event(fmt.Sprint("tx", i)))
			if r.Verdict == engine.InFlight {
				runtime.Gosched()
				continue
			}
			break
		}
	}
	if n := e.Reservations(); n != 0 {
		t.Errorf("%d reservations", n)
	}
}

// Callers leave at random. For each event one call has returned Claimed, or it can still be claimed;
// in the second case no call has returned Duplicate.
func TestCallersThatLeaveAtRandom(t *testing.T) {
	gone := 0
	eachSeed(t, 40, func(t *testing.T, rnd *rand.Rand, seed uint64) {
		m := storetest.NewMem(storage.Identity{})
		jitter(m, seed)
		e := open(t, m, engine.Options{RecentClaims: []int{-1, 1, 100}[rnd.IntN(3)]})
		const ids = 40
		var mu sync.Mutex
		var claimed, duplicates [ids]int
		var wg sync.WaitGroup
		for client := range 6 {
			rnd := rand.New(rand.NewPCG(seed, uint64(client)))
			wg.Go(func() {
				for _, i := range rnd.Perm(ids) {
					v := leaveSomehow(e, rnd, event(fmt.Sprint(i)))
					mu.Lock()
					switch v {
					case engine.Claimed:
						claimed[i]++
					case engine.Duplicate:
						duplicates[i]++
					case engine.Failed:
						gone++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		awaitNoRisk(t, e)
		for i := range ids {
			v := claim(t, e, event(fmt.Sprint(i))).Verdict
			free := v == engine.Claimed
			switch {
			case claimed[i] > 1:
				t.Errorf("event %d was claimed %d times", i, claimed[i])
			case free && claimed[i]+duplicates[i] > 0:
				t.Errorf("event %d is free after %d claimed, %d duplicates", i, claimed[i], duplicates[i])
			case !free && claimed[i] == 0:
				t.Errorf("event %d is %v, but no call has returned Claimed", i, v)
			}
		}
		verifyClean(t, e, ids)
	})
	if gone == 0 {
		t.Error("no caller has left")
	}
}

// leaveSomehow judges an event in some way, with a context that ends soon or does not.
func leaveSomehow(e *engine.Engine, rnd *rand.Rand, ev engine.Event) engine.Verdict {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	if rnd.IntN(2) == 0 {
		wait := rnd.IntN(200)
		go func() {
			for range wait {
				runtime.Gosched()
			}
			cancel()
		}()
	}
	switch rnd.IntN(4) {
	case 0:
		rs, _ := e.TryClaimBatch(during, []engine.Event{ev})
		return rs[0].Verdict
	case 1:
		var v engine.Verdict
		lazy := rnd.IntN(2) == 0
		err := e.Update(ctx, func(tx *engine.Tx) error { // its ctx does not end: its outcome is known
			r, err := tx.TryClaim(ev)
			v = r.Verdict
			return err
		}, engine.UpdateOptions{AllowUnsyncedDuplicates: lazy})
		if err != nil {
			return engine.InFlight
		}
		return v
	}
	r, _ := e.TryClaim(during, ev)
	return r.Verdict
}
