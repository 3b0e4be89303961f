package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
)

// aroundMonday runs a test in midweek, and so that Monday 00:00 comes an hour after its start.
func aroundMonday(t *testing.T, test func(t *testing.T, start time.Time)) {
	for name, start := range map[string]time.Time{"midweek": noon, "sunday": monday.Add(-time.Hour)} {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

// A lease that is renewed lasts longer than the window of its claim, and no other caller has the
// event meanwhile.
func TestALeaseOutlastsItsWindow(t *testing.T) {
	aroundMonday(t, func(t *testing.T, start time.Time) {
		c := &clock{t: start}
		e, _ := openMem(t, engine.Options{Clock: c.now})
		ev := arriving("a", 10*time.Minute)
		ev.Lease = time.Hour
		l := mustLease(t, e, ev)
		for range 4 {
			c.set(c.now().Add(50 * time.Minute))
			wantVerdict(t, claim(t, e, ev), engine.Pending)
			update(t, e, func(tx *engine.Tx) { wantTx(t, tx, ev, engine.Pending) })
			if _, err := e.Renew(ctx, l, time.Hour); err != nil {
				t.Fatalf("at %v: %v", c.now(), err)
			}
		}
		if err := e.Finish(ctx, l, []byte("first")); err != nil {
			t.Error(err)
		}
	})
}

// The window of a claim decides how long it lasts, not that of the event that is asked for.
func TestAShorterWindowDoesNotEndTheClaimOfALongerOne(t *testing.T) {
	aroundMonday(t, func(t *testing.T, start time.Time) {
		c := &clock{t: start}
		e, _ := openMem(t, engine.Options{Clock: c.now})
		wantVerdict(t, claim(t, e, arriving("a", 7*24*time.Hour)), engine.Claimed)
		c.set(start.Add(3 * time.Hour))
		wantVerdict(t, claim(t, e, arriving("a", time.Hour)), engine.Duplicate)
		update(t, e, func(tx *engine.Tx) { wantTx(t, tx, arriving("a", time.Hour), engine.Duplicate) })
		c.set(start.Add(7 * 24 * time.Hour))
		wantVerdict(t, claim(t, e, arriving("a", time.Hour)), engine.Claimed)
	})
}

// A transaction finds its own claim, also after its window.
func TestATransactionFindsItsClaimAfterItsWindow(t *testing.T) {
	aroundMonday(t, func(t *testing.T, start time.Time) {
		c := &clock{t: start}
		e, _ := openMem(t, engine.Options{Clock: c.now})
		ev := arriving("a", time.Minute)
		err := e.Update(ctx, func(tx *engine.Tx) error {
			wantTx(t, tx, ev, engine.Claimed)
			c.set(start.Add(2 * time.Hour))
			_, err := tx.DeadLetter(ev)
			return errors.Join(err, tx.SetData(ev, []byte("x")))
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A claim in another week is taken over by the batch of the new claim, whatever time the two
// deliveries have: of two holders one finishes.
func TestATakeOverFromAnotherWeekEndsTheLease(t *testing.T) {
	exact, approximate, arrives := at("a", weeksLater(-1)), stamped("a", 0), arriving("a", time.Hour)
	approximate.Time = noon
	before := stamped("a", -1)
	exact.Window, before.Window = 24*time.Hour, 24*time.Hour
	for name, tt := range map[string]struct{ first, second engine.Event }{
		"exact, then approximate":       {exact, approximate},
		"approximate, then approximate": {before, approximate},
		"exact, then on arrival":        {exact, arrives},
		"approximate, then on arrival":  {before, arrives},
	} {
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tx=%t", name, inTx), func(t *testing.T) {
				c := &clock{t: noon}
				e, _ := openMem(t, engine.Options{Clock: c.now})
				first, second := tt.first, tt.second
				first.Lease, second.Lease, first.Fingerprint = time.Hour, 2*time.Hour, "f"
				old := mustLease(t, e, first)
				wantVerdict(t, claim(t, e, second), engine.Pending)
				c.set(noon.Add(90 * time.Minute))
				var next engine.Result
				if inTx {
					update(t, e, func(tx *engine.Tx) { next, _ = tx.TryClaim(second) })
				} else {
					next = claim(t, e, second)
				}
				wantVerdict(t, next, engine.Claimed)
				if _, err := e.Renew(ctx, old, time.Hour); !errors.Is(err, engine.ErrLeaseLost) {
					t.Errorf("the old holder renews: %v", err)
				}
				if err := e.Update(ctx, func(tx *engine.Tx) error { return tx.Finish(old, nil) }); !errors.Is(err, engine.ErrLeaseLost) {
					t.Errorf("the old holder finishes in a transaction: %v", err)
				}
				rec, found, err := e.Admin().Lookup(ctx, first.Scope, first.ID, first.Time)
				if err != nil || !found || rec.State != engine.Released || rec.Fingerprint != "" {
					t.Errorf("the claim that was taken over: %+v, %t, %v", rec, found, err)
				}
				second.Fingerprint = "another"
				wantVerdict(t, claim(t, e, second), engine.Pending)
				if err := e.Finish(ctx, next.Lease, []byte("next")); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Only the holder's own claim says whether it holds the lease: claims in other weeks that were
// released, and a clock that was set back, do not.
func TestAReleasedClaimInAnotherWeekIsNoTakeOver(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	a, b := stamped("a", -1), stamped("a", 0)
	a.Lease, b.Lease = time.Hour, time.Hour
	if err := e.Release(ctx, mustLease(t, e, a)); err != nil {
		t.Fatal(err)
	}
	if err := e.Finish(ctx, mustLease(t, e, b), nil); err != nil {
		t.Errorf("in the same millisecond: %v", err)
	}
	c := &clock{t: monday.Add(200 * time.Millisecond)}
	e, _ = openMem(t, engine.Options{Clock: c.now})
	ev := arriving("a", time.Hour)
	ev.Lease = time.Minute
	if err := e.Release(ctx, mustLease(t, e, ev)); err != nil {
		t.Fatal(err)
	}
	c.set(monday.Add(-200 * time.Millisecond))
	l := mustLease(t, e, ev)
	c.set(monday.AddDate(3, 0, 0)) // for a moment
	if _, err := e.Renew(ctx, l, time.Minute); err != nil {
		t.Errorf("a clock that is ahead: %v", err)
	}
	c.set(monday)
	wantVerdict(t, claim(t, e, ev), engine.Pending)
	if err := e.Finish(ctx, l, nil); err != nil {
		t.Error(err)
	}
}

// A claim is taken over as well after a clock has jumped by more than a year.
func TestATakeOverAfterAClockJumpEndsTheLease(t *testing.T) {
	for _, days := range []int{30, 300, 400} {
		c := &clock{t: noon}
		e, _ := openMem(t, engine.Options{Clock: c.now})
		ev := arriving("a", time.Hour)
		ev.Lease = time.Minute
		old := mustLease(t, e, ev)
		c.set(noon.AddDate(0, 0, days))
		next := mustLease(t, e, ev)
		if err := e.Finish(ctx, old, []byte("old")); !errors.Is(err, engine.ErrLeaseLost) {
			t.Errorf("%d days: the old holder: %v", days, err)
		}
		if err := e.Finish(ctx, next, []byte("next")); err != nil {
			t.Errorf("%d days: %v", days, err)
		}
	}
}

// A transaction, or its parts, cannot take a claim over and finish it by the old lease.
func TestATransactionDoesNotFinishAClaimThatItTakesOver(t *testing.T) {
	for name, work := range map[string]func(tx *engine.Tx, ev engine.Event, old *engine.Lease) error{
		"one": func(tx *engine.Tx, ev engine.Event, old *engine.Lease) error {
			_, err := tx.TryClaim(ev)
			return errors.Join(err, tx.Finish(old, nil))
		},
		"parts": func(tx *engine.Tx, ev engine.Event, old *engine.Lease) error {
			a, errA := driver.BeginSubTx(tx)
			b, errB := driver.BeginSubTx(tx)
			if err := errors.Join(errA, errB); err != nil {
				return err
			}
			_, err := a.Tx().TryClaim(ev)
			return errors.Join(err, b.Tx().Finish(old, nil), a.Join(), b.Join())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{t: monday.Add(-time.Hour)}
			e, _ := openMem(t, engine.Options{Clock: c.now})
			ev := arriving("a", 24*time.Hour)
			ev.Lease = time.Minute
			old := mustLease(t, e, ev)
			c.set(monday.Add(time.Hour))
			if err := e.Update(ctx, func(tx *engine.Tx) error { return work(tx, ev, old) }); !errors.Is(err, engine.ErrLeaseLost) {
				t.Errorf("the transaction ended with %v", err)
			}
			if err := e.Finish(ctx, old, []byte("old")); err != nil { // nothing has taken it over
				t.Error(err)
			}
			wantVerdict(t, claim(t, e, ev), engine.Duplicate)
		})
	}
}

// The committer decides nothing else while it decides a transaction, so the time for one that takes over
// all of its claims does not grow with the square of their number.
func TestATransactionThatTakesOverManyClaims(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 98,304 claims, one transaction after the other")
	}
	c := &clock{t: monday.Add(-time.Hour)}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	const n = limits.TxClaims / 2
	events := make([]engine.Event, 2*n) // the first half is taken over
	for i := range events {
		events[i] = arriving(fmt.Sprint(i), 24*time.Hour)
		events[i].Lease = time.Minute
	}
	if _, err := e.TryClaimBatch(ctx, events[:n]); err != nil {
		t.Fatal(err)
	}
	c.set(monday.Add(time.Hour))
	commit := func(events []engine.Event) time.Duration {
		var decided time.Time
		update(t, e, func(tx *engine.Tx) {
			for i := range events {
				wantTx(t, tx, events[i], engine.Claimed)
			}
			decided = time.Now()
		})
		return time.Since(decided)
	}
	others, takeOver := commit(events[n:]), commit(events[:n])
	if takeOver > 10*others+time.Second/4 {
		t.Errorf("a transaction of %d claims commits in %v, and in %v if it takes all of them over", n, others, takeOver)
	}
}

// A claim that lasts as long as its week counts for an event on arrival, however old the week is.
func TestAClaimInAnOldWeekCountsOnArrival(t *testing.T) {
	e, _ := openMem(t, engine.Options{RetentionWeeks: engine.KeepAll})
	for _, weeks := range []int{1, 7, 8, 9, 53, 60, 500} {
		id := fmt.Sprint(weeks)
		wantVerdict(t, claim(t, e, at(id, weeksLater(-weeks))), engine.Claimed)
		wantVerdict(t, claim(t, e, arriving(id, time.Hour)), engine.Duplicate)
		update(t, e, func(tx *engine.Tx) { wantTx(t, tx, arriving(id, time.Hour), engine.Duplicate) })
	}
}
