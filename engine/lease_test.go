package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
)

// leasedEvent is an event whose claim is pending for an hour.
func leasedEvent(id string) engine.Event {
	ev := event(id)
	ev.Lease = time.Hour
	return ev
}

func mustLease(t *testing.T, e *engine.Engine, ev engine.Event) *engine.Lease {
	t.Helper()
	r := claim(t, e, ev)
	wantVerdict(t, r, engine.Claimed)
	if r.Lease == nil || r.Record.State != engine.Leased || r.Record.Owner == 0 {
		t.Fatalf("claimed without a lease: %+v", r)
	}
	return r.Lease
}

func TestAResultIsReturnedForDuplicates(t *testing.T) {
	for name, finish := range map[string]func(*engine.Engine, *engine.Lease, []byte) error{
		"at most once": func(e *engine.Engine, l *engine.Lease, data []byte) error { return e.Finish(ctx, l, data) },
		"transaction": func(e *engine.Engine, l *engine.Lease, data []byte) error {
			return e.Update(ctx, func(tx *engine.Tx) error {
				return errors.Join(tx.Finish(l, data), tx.Put([]byte("work"), []byte("done")))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{t: noon}
			e, m := openMem(t, engine.Options{Clock: c.now})
			l := mustLease(t, e, leasedEvent("a"))
			for _, ev := range []engine.Event{leasedEvent("a"), event("a")} { // another caller, and one that needs no result
				r := claim(t, e, ev)
				wantVerdict(t, r, engine.Pending)
				if !r.Record.LeaseEnd.Equal(noon.Add(time.Hour)) || r.Lease != nil {
					t.Fatalf("while it is pending: %+v", r)
				}
				update(t, e, func(tx *engine.Tx) { wantTx(t, tx, ev, engine.Pending) })
			}
			data := []byte("\x00any bytes\xff" + strings.Repeat("x", limits.DataBytes-11))
			if err := finish(e, l, data); err != nil {
				t.Fatal(err)
			}
			for _, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{Clock: c.now})} {
				r := claim(t, e, leasedEvent("a"))
				wantVerdict(t, r, engine.Duplicate)
				if r.Record.Data != string(data) || r.Record.State != engine.Done || r.Record.Owner != 0 || !r.Record.LeaseEnd.IsZero() {
					t.Fatalf("%d bytes came back, %v", len(r.Record.Data), r.Record.State)
				}
			}
			for _, err := range []error{e.Finish(ctx, l, nil), e.Release(ctx, l), finish(e, l, nil)} {
				if !errors.Is(err, engine.ErrLeaseLost) {
					t.Errorf("once it is finished: %v", err)
				}
			}
		})
	}
}

func TestAnExpiredLeaseIsTakenOverAndTheOldOwnerIsLate(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	old := mustLease(t, e, leasedEvent("a"))
	c.set(noon.Add(time.Hour - time.Millisecond))
	wantVerdict(t, claim(t, e, leasedEvent("a")), engine.Pending)
	c.set(noon.Add(time.Hour))
	next := mustLease(t, e, leasedEvent("a"))
	for what, err := range map[string]error{
		"finish":  e.Finish(ctx, old, []byte("old")),
		"release": e.Release(ctx, old),
		"renew":   second(e.Renew(ctx, old, time.Hour)),
		"finish in a transaction": e.Update(ctx, func(tx *engine.Tx) error {
			return tx.Finish(old, []byte("old"))
		}),
		"no lease": e.Finish(ctx, nil, nil),
	} {
		if !errors.Is(err, engine.ErrLeaseLost) {
			t.Errorf("%s of the old owner: %v", what, err)
		}
	}
	if err := e.Finish(ctx, next, []byte("next")); err != nil {
		t.Fatal(err)
	}
	if r := claim(t, e, event("a")); r.Verdict != engine.Duplicate || r.Record.Data != "next" || r.Record.Generation != 1 {
		t.Errorf("%+v", r)
	}
}

func second[T any](_ T, err error) error { return err }

// No caller has taken it over: the work was done, and is not repeated.
func TestAnExpiredLeaseFinishesAClaimThatWasNotTakenOver(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	l := mustLease(t, e, leasedEvent("a"))
	c.set(noon.Add(5 * time.Hour))
	if err := e.Finish(ctx, l, []byte("late")); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, leasedEvent("a")), engine.Duplicate)
}

func TestALeaseIsRenewed(t *testing.T) {
	c := &clock{t: noon}
	e, m := openMem(t, engine.Options{Clock: c.now})
	l := mustLease(t, e, leasedEvent("a"))
	c.set(noon.Add(50 * time.Minute))
	if end, err := e.Renew(ctx, l, 20*time.Minute); err != nil || !end.Equal(noon.Add(70*time.Minute)) {
		t.Fatal(end, err)
	}
	c.set(noon.Add(70*time.Minute - time.Millisecond))
	wantVerdict(t, claim(t, e, leasedEvent("a")), engine.Pending)
	after := open(t, m.CrashClone(0), engine.Options{Clock: c.now}) // without its owner
	wantVerdict(t, claim(t, after, leasedEvent("a")), engine.Pending)
	c.set(noon.Add(70 * time.Minute))
	mustLease(t, after, leasedEvent("a"))
	for _, d := range []time.Duration{-1, 0, time.Microsecond, limits.Lease + 1} {
		var bad *engine.EventError
		if _, err := e.Renew(ctx, l, d); !errors.As(err, &bad) {
			t.Errorf("for %v: %v", d, err)
		}
	}
}

func TestAReleasedClaimIsClaimedByTheNextCaller(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := leasedEvent("a")
	ev.Fingerprint = "one"
	l := mustLease(t, e, ev)
	if err := e.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	if err := e.Finish(ctx, l, nil); !errors.Is(err, engine.ErrLeaseLost) {
		t.Errorf("the owner that released it: %v", err)
	}
	ev.Fingerprint = "two"
	mustLease(t, e, ev)
}

func TestAnotherFingerprintIsAMismatch(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	one := leasedEvent("a")
	one.Window, one.Fingerprint = 24*time.Hour, "one"
	two, none := one, one
	two.Fingerprint, none.Fingerprint = "two", ""
	both := func(ev engine.Event, want engine.Verdict) {
		t.Helper()
		wantVerdict(t, claim(t, e, ev), want)
		if want != engine.Claimed {
			update(t, e, func(tx *engine.Tx) { wantTx(t, tx, ev, want) })
		}
	}
	l := mustLease(t, e, one)
	both(two, engine.Mismatch)
	both(one, engine.Pending)
	both(none, engine.Pending)
	c.set(noon.Add(time.Hour)) // a caller that takes it over has the same fingerprint
	both(two, engine.Mismatch)
	if err := e.Finish(ctx, l, []byte("one")); err != nil {
		t.Fatal(err)
	}
	both(two, engine.Mismatch)
	both(one, engine.Duplicate)
	both(none, engine.Duplicate)
	c.set(noon.Add(24 * time.Hour)) // its window has ended
	both(two, engine.Claimed)
	both(one, engine.Mismatch)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		other := one
		other.ID = []byte("b")
		wantTx(t, tx, other, engine.Claimed)
		wantTx(t, tx, other, engine.Duplicate)
		other.Fingerprint = "two"
		wantTx(t, tx, other, engine.Mismatch)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Each of them retries until it has the result; the one that gets Claimed does the work.
func TestAThousandCallersHaveOneResult(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var executed atomic.Int64
	results := make(chan string, 1000)
	finished := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			ev := leasedEvent("key")
			ev.Fingerprint = "payload"
			for {
				r, err := e.TryClaim(ctx, ev)
				switch {
				case err != nil:
					t.Error(err)
					return
				case r.Verdict == engine.Claimed:
					executed.Add(1)
					if err := e.Finish(ctx, r.Lease, fmt.Appendf(nil, "done by %d", i)); err != nil {
						t.Error(err)
					}
					close(finished)
				case r.Verdict == engine.Duplicate:
					results <- r.Record.Data
					return
				case r.Verdict != engine.Pending:
					t.Error(r.Verdict)
					return
				}
				<-finished
			}
		})
	}
	wg.Wait()
	close(results)
	different := map[string]int{}
	for r := range results {
		different[r]++
	}
	if executed.Load() != 1 || len(different) != 1 {
		t.Errorf("executed %d times, with results %v", executed.Load(), different)
	}
}

// The old owner still works when its lease expires; one later caller takes over, and only one of
// all that finish succeeds.
func TestOneOfAThousandTakesOver(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	leases := []*engine.Lease{mustLease(t, e, leasedEvent("a"))}
	for round := 1; round <= 3; round++ {
		c.set(noon.Add(time.Duration(round) * time.Hour))
		var mu sync.Mutex
		var wg sync.WaitGroup
		before := len(leases)
		for i := range 1000 {
			wg.Go(func() {
				var r engine.Result
				var err error
				if i%2 == 0 {
					r, err = e.TryClaim(ctx, leasedEvent("a"))
				} else {
					err = e.Update(ctx, func(tx *engine.Tx) (err error) {
						r, err = tx.TryClaim(leasedEvent("a"))
						return err
					})
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && r.Verdict == engine.Claimed:
					leases = append(leases, r.Lease)
				case err == nil && r.Verdict != engine.Pending && r.Verdict != engine.InFlight, err != nil && !errors.Is(err, engine.ErrConflict):
					t.Error(r.Verdict, err)
				}
			})
		}
		wg.Wait()
		if len(leases) != before+1 {
			t.Fatalf("round %d: %d took it over", round, len(leases)-before)
		}
	}
	var heard atomic.Int64
	var wg sync.WaitGroup
	for i, l := range leases {
		wg.Go(func() {
			if err := e.Finish(ctx, l, fmt.Append(nil, i)); err == nil {
				heard.Add(1)
			} else if !errors.Is(err, engine.ErrLeaseLost) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r := claim(t, e, event("a")); heard.Load() != 1 || r.Record.Data != fmt.Sprint(len(leases)-1) {
		t.Errorf("%d succeeded, the result is %q", heard.Load(), r.Record.Data)
	}
}

// An event with the time of its arrival is taken over in the week of that time, and its old owner
// is still late.
func TestALeaseIsTakenOverAcrossMonday(t *testing.T) {
	for _, finish := range []func(*engine.Engine, *engine.Lease) error{
		func(e *engine.Engine, l *engine.Lease) error { return e.Finish(ctx, l, []byte("old")) },
		func(e *engine.Engine, l *engine.Lease) error {
			return e.Update(ctx, func(tx *engine.Tx) error { return tx.Finish(l, []byte("old")) })
		},
	} {
		c := &clock{t: sunday}
		e, _ := openMem(t, engine.Options{Clock: c.now})
		ev := arriving("a", 4*7*24*time.Hour)
		ev.Lease = time.Hour
		old := mustLease(t, e, ev)
		c.set(sunday.AddDate(0, 0, 15)) // two weeks of its window later
		next := mustLease(t, e, ev)
		if err := finish(e, old); !errors.Is(err, engine.ErrLeaseLost) {
			t.Errorf("the old owner: %v", err)
		}
		c.set(sunday) // the clock is set back, and the old lease has not expired any more
		if err := finish(e, old); !errors.Is(err, engine.ErrLeaseLost) {
			t.Errorf("the old owner, after the clock was set back: %v", err)
		}
		c.set(sunday.AddDate(0, 0, 15))
		if err := e.Finish(ctx, next, []byte("next")); err != nil {
			t.Fatal(err)
		}
		if r := claim(t, e, ev); r.Verdict != engine.Duplicate || r.Record.Data != "next" {
			t.Errorf("%+v", r)
		}
	}
}

func TestATransactionFinishesAllOrNothing(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	l := mustLease(t, e, leasedEvent("a"))
	boom := errors.New("boom")
	err := e.Update(ctx, func(tx *engine.Tx) error {
		if err := tx.Finish(l, []byte("undone")); err != nil {
			t.Fatal(err)
		}
		wantTx(t, tx, leasedEvent("a"), engine.Duplicate)
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, leasedEvent("a")), engine.Pending)

	update(t, e, func(tx *engine.Tx) {
		sp, err := tx.Savepoint()
		if err == nil {
			err = errors.Join(tx.Finish(l, []byte("undone")), tx.RollbackTo(sp), tx.Finish(l, []byte("kept")))
		}
		if err != nil || !errors.Is(tx.Finish(l, nil), engine.ErrLeaseLost) {
			t.Fatal(err)
		}
	})
	if r := claim(t, e, event("a")); r.Record.Data != "kept" {
		t.Errorf("the result is %q", r.Record.Data)
	}

	// Taken over after Finish, and before the transaction commits.
	l = mustLease(t, e, leasedEvent("b"))
	err = e.Update(ctx, func(tx *engine.Tx) error {
		if err := tx.Finish(l, []byte("late")); err != nil {
			t.Fatal(err)
		}
		mustPut(t, tx, "k", "v")
		c.set(noon.Add(time.Hour))
		wantVerdict(t, claim(t, e, leasedEvent("b")), engine.InFlight) // the transaction holds it
		return e.Release(ctx, l)
	})
	if !errors.Is(err, engine.ErrLeaseLost) {
		t.Errorf("the transaction ended with %v", err)
	}
	wantKept(t, e, map[string]string{"k": "absent"})
	mustLease(t, e, leasedEvent("b"))
}

func TestATransactionDoesNotSeeATakeOverThatItsLeaseOutlasted(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	l := mustLease(t, e, leasedEvent("a"))
	c.set(noon.Add(time.Hour))
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, leasedEvent("a"), engine.Claimed)
		return second(e.Renew(ctx, l, time.Hour)) // before the take-over commits
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("the take-over: %v", err)
	}
	if err := e.Finish(ctx, l, nil); err != nil {
		t.Error(err)
	}
}

func TestDataIsKeptWithAClaimOfTheTransaction(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := leasedEvent("leased")
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("plain"), engine.Claimed)
		wantTx(t, tx, ev, engine.Claimed)
		wantTx(t, tx, event("none"), engine.Claimed)
		sp, err := tx.Savepoint()
		for _, ev := range []engine.Event{event("plain"), ev, event("none")} {
			err = errors.Join(err, tx.SetData(ev, []byte("undone")))
		}
		err = errors.Join(err, tx.RollbackTo(sp))
		for _, ev := range []engine.Event{event("plain"), ev} {
			err = errors.Join(err, tx.SetData(ev, []byte("result of "+string(ev.ID))))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.SetData(event("other"), nil); !errors.Is(err, engine.ErrNotClaimed) {
			t.Errorf("of an event that was not claimed: %v", err)
		}
		var bad *engine.EventError
		if err := tx.SetData(ev, make([]byte, limits.DataBytes+1)); !errors.As(err, &bad) || bad.Field != "data" {
			t.Errorf("too much of it: %v", err)
		}
	})
	for _, id := range []string{"plain", "leased"} {
		if r := claim(t, e, event(id)); r.Verdict != engine.Duplicate || r.Record.Data != "result of "+id {
			t.Errorf("%+v", r)
		}
	}
	if r := claim(t, e, event("none")); r.Verdict != engine.Duplicate || r.Record.Data != "" {
		t.Errorf("data that was rolled back: %+v", r)
	}
	err := e.Update(ctx, func(tx *engine.Tx) error {
		for i := range 2 * limits.TxBytes / limits.DataBytes {
			wantTx(t, tx, event(fmt.Sprint(i)), engine.Claimed)
			if err := tx.SetData(event(fmt.Sprint(i)), make([]byte, limits.DataBytes)); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, engine.ErrLimit) {
		t.Errorf("more data than a transaction holds: %v", err)
	}
	// The data that was replaced is kept for a rollback, and released by it.
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("replaced"), engine.Claimed)
		set := func() error { return tx.SetData(event("replaced"), make([]byte, limits.DataBytes)) }
		for range 2 * limits.TxBytes / limits.DataBytes {
			sp, err := tx.Savepoint()
			if err = errors.Join(err, set(), tx.RollbackTo(sp)); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		for i := 0; i < 2*limits.TxBytes/limits.DataBytes && err == nil; i++ {
			err = set()
		}
		if !errors.Is(err, engine.ErrLimit) {
			t.Errorf("more replaced data than a transaction holds: %v", err)
		}
	})
}

// The cache of claims is bounded in records, and a result may be long.
func TestResultsAreNotCached(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	if err := e.Finish(ctx, mustLease(t, e, leasedEvent("a")), []byte("result")); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, event("b")), engine.Claimed)
	hits := func(id string) uint64 {
		before := stats(t, e).CacheHits
		for range 3 {
			wantVerdict(t, claim(t, e, event(id)), engine.Duplicate)
		}
		return stats(t, e).CacheHits - before
	}
	if a, b := hits("a"), hits("b"); a != 0 || b == 0 {
		t.Errorf("%d hits for a claim with a result, %d for one without", a, b)
	}
}

func TestLeasesAndFingerprintsThatCannotBeKeptAreRejected(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	for field, ev := range map[string]engine.Event{
		"lease":       {Lease: -time.Second},
		"lease ":      {Lease: time.Microsecond},
		"lease  ":     {Lease: limits.Lease + 1},
		"fingerprint": {Fingerprint: strings.Repeat("x", limits.FingerprintBytes+1)},
	} {
		base := event("a")
		base.Lease, base.Fingerprint = ev.Lease, ev.Fingerprint
		var bad *engine.EventError
		if _, err := e.TryClaim(ctx, base); !errors.As(err, &bad) || bad.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestPartsFinishClaimsAndKeepData(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	l := mustLease(t, e, leasedEvent("a"))
	update(t, e, func(tx *engine.Tx) {
		part := func(fn func(tx *engine.Tx) error) driver.SubTx {
			t.Helper()
			p, err := driver.BeginSubTx(tx)
			if err == nil {
				err = fn(p.Tx())
			}
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		keep := func(id string) driver.SubTx {
			return part(func(tx *engine.Tx) error {
				wantTx(t, tx, event(id), engine.Claimed)
				return tx.SetData(event(id), []byte("data"))
			})
		}
		one := part(func(tx *engine.Tx) error { return tx.Finish(l, []byte("one")) })
		two := part(func(tx *engine.Tx) error { return tx.Finish(l, []byte("two")) })
		if err := one.Join(); err != nil {
			t.Fatal(err)
		}
		if err := two.Join(); !errors.Is(err, driver.ErrPartOutdated) {
			t.Errorf("the second part that finishes it: %v", err)
		}
		later := part(func(tx *engine.Tx) error {
			if err := tx.Finish(l, nil); !errors.Is(err, engine.ErrNotClaimed) {
				t.Errorf("a part that begins after it: %v", err)
			}
			return nil
		})
		if err := errors.Join(later.Discard(), keep("b").Join()); err != nil {
			t.Fatal(err)
		}
		sp, err := tx.Savepoint()
		if err := errors.Join(err, keep("c").Join(), tx.RollbackTo(sp)); err != nil {
			t.Fatal(err)
		}
	})
	for id, data := range map[string]string{"a": "one", "b": "data"} {
		if r := claim(t, e, event(id)); r.Verdict != engine.Duplicate || r.Record.Data != data {
			t.Errorf("%q: %+v", id, r)
		}
	}
	wantVerdict(t, claim(t, e, event("c")), engine.Claimed)
}

// A lease of a closed engine holds its claim in the engine that opens the store again, even if that
// engine would reject the event.
func TestALeaseRemainsUnderOtherOptions(t *testing.T) {
	old := leasedEvent(strings.Repeat("i", 40))
	old.Time, old.Window = noon.Add(time.Hour), 3*7*24*time.Hour
	arrives := leasedEvent("arrives")
	arrives.Time, arrives.Window = time.Time{}, 3*7*24*time.Hour
	use := map[string]func(*engine.Engine, *engine.Lease) error{
		"finish":  func(e *engine.Engine, l *engine.Lease) error { return e.Finish(ctx, l, []byte("result")) },
		"renew":   func(e *engine.Engine, l *engine.Lease) error { return second(e.Renew(ctx, l, time.Hour)) },
		"release": func(e *engine.Engine, l *engine.Lease) error { return e.Release(ctx, l) },
		"finish in a transaction": func(e *engine.Engine, l *engine.Lease) error {
			return e.Update(ctx, func(tx *engine.Tx) error { return tx.Finish(l, []byte("result")) })
		},
	}
	for name, use := range use {
		t.Run(name, func(t *testing.T) {
			e, m := openMem(t, engine.Options{RetentionWeeks: 4})
			leases := []*engine.Lease{mustLease(t, e, old), mustLease(t, e, arrives)}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = open(t, reopened(t, m), engine.Options{RetentionWeeks: 1, MaxIDBytes: 32, AllowedSkew: time.Minute})
			for i, l := range leases {
				if err := use(e, l); err != nil {
					t.Errorf("lease %d: %v", i, err)
				}
			}
		})
	}
}
