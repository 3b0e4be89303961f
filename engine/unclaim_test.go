package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// unclaim withdraws a claim in a transaction that also moves an offset.
func unclaim(t testing.TB, e *engine.Engine, ev engine.Event, rec engine.ClaimRecord) {
	t.Helper()
	update(t, e, func(tx *engine.Tx) {
		if err := driver.Unclaim(tx, ev, rec); err != nil {
			t.Fatalf("withdrawing the claim on %q: %v", ev.ID, err)
		}
		if err := tx.SetOffset(engine.OffsetKey{Group: "g", Topic: "orders"}, engine.Offset{Next: 5}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWithdrawnClaimIsClaimedAgain(t *testing.T) {
	for _, cache := range []int{-1, 0, 1} {
		t.Run(fmt.Sprint("cache ", cache), func(t *testing.T) {
			e, m, c := openAt(t, engine.Options{RecentClaims: cache})
			for i := range 3 {
				ev := event("a")
				ev.Origin.Offset = int64(i)
				first := claim(t, e, ev)
				wantVerdict(t, first, engine.Claimed)
				wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
				wantVerdict(t, claim(t, e, event("a")), engine.Duplicate) // it is in the cache
				unclaim(t, e, ev, first.Record)
				if _, found, err := e.Admin().Lookup(ctx, "billing", []byte("a"), noon); found || err != nil {
					t.Fatal(found, err)
				}
				verifyClean(t, e, 0)
			}
			e = open(t, m.CrashClone(0), engine.Options{RecentClaims: cache, Clock: c.now}) // through the journal
			verifyClean(t, e, 0)
			if o, found, err := e.Admin().Offset(ctx, engine.OffsetKey{Group: "g", Topic: "orders"}); o.Next != 5 || !found || err != nil {
				t.Error("the offset of the same batch:", o, found, err)
			}
			wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
			verifyClean(t, e, 1)
		})
	}
}

func TestOnlyTheClaimWithItsOwnRecordIsWithdrawn(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 1})
	other := event("a")
	other.Origin.Offset = 99
	rec := claim(t, e, event("a")).Record
	old := claim(t, e, at("old", weeksLater(-1))).Record
	wrong := rec
	wrong.Origin = other.Origin
	update(t, e, func(tx *engine.Tx) {
		for name, err := range map[string]error{
			"another delivery":  driver.Unclaim(tx, event("a"), wrong),
			"another event":     driver.Unclaim(tx, event("b"), rec),
			"another life":      driver.Unclaim(tx, event("a"), engine.ClaimRecord{State: rec.State, Generation: 1, FirstSeen: rec.FirstSeen, Origin: rec.Origin}),
			"one of its own":    unclaimOwn(tx),
			"one without scope": driver.Unclaim(tx, engine.Event{ID: []byte("a"), Time: noon, Origin: rec.Origin}, rec),
		} {
			if want := engine.ErrNotClaimed; name != "one without scope" && !errors.Is(err, want) || err == nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
	if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); err != nil {
		t.Fatal(err)
	}
	update(t, e, func(tx *engine.Tx) {
		if err := driver.Unclaim(tx, at("old", weeksLater(-1)), old); !errors.Is(err, engine.ErrNotClaimed) {
			t.Errorf("in a dropped week: %v", err)
		}
	})
	verifyClean(t, e, 2)
}

// Stats.Withdrawn counts the withdrawals of committed transactions, without those that were rolled
// back in them.
func TestWithdrawnClaimsAreCounted(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	a, b := claim(t, e, event("a")).Record, claim(t, e, event("b")).Record
	update(t, e, func(tx *engine.Tx) {
		sp, err := tx.Savepoint()
		if err = errors.Join(err, driver.Unclaim(tx, event("b"), b), tx.RollbackTo(sp), driver.Unclaim(tx, event("a"), a), driver.Unclaim(tx, event("a"), a)); err != nil {
			t.Fatal(err)
		}
	})
	_ = e.Update(ctx, func(tx *engine.Tx) error { return errors.Join(driver.Unclaim(tx, event("b"), b), errHandler) })
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
	s := stats(t, e)
	if s.Withdrawn != 1 || s.Verdicts[engine.Claimed] != 3 {
		t.Errorf("%d of %d claims are withdrawn, want 1 of 3", s.Withdrawn, s.Verdicts[engine.Claimed])
	}
	verifyClean(t, e, 2)
}

func unclaimOwn(tx *engine.Tx) error {
	r, err := tx.TryClaim(event("own"))
	if err != nil {
		return err
	}
	return driver.Unclaim(tx, event("own"), r.Record)
}

// A reopened dead letter that is withdrawn can be claimed by its replay, once, with the next
// generation.
func TestWithdrawnReopenedDeadLetterIsReleased(t *testing.T) {
	for _, cache := range []int{-1, 0} {
		e, m, c := openAt(t, engine.Options{RecentClaims: cache})
		update(t, e, func(tx *engine.Tx) {
			wantTx(t, tx, event("a"), engine.Claimed)
			if _, err := tx.DeadLetter(event("a")); err != nil {
				t.Fatal(err)
			}
		})
		for i := range uint64(3) {
			var opened engine.Result
			update(t, e, func(tx *engine.Tx) {
				var err error
				if opened, err = tx.TryReopen(event("a"), 0); err != nil || opened.Verdict != engine.Claimed || opened.Record.Generation != i+1 {
					t.Fatalf("reopened: %+v, %v", opened, err)
				}
			})
			wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
			wantVerdict(t, claim(t, e, event("a")), engine.Duplicate) // it is in the cache
			unclaim(t, e, event("a"), opened.Record)
			rec, found, err := e.Admin().Lookup(ctx, "billing", []byte("a"), noon)
			if err != nil || !found || rec.State != engine.Released || rec.Generation != i+1 {
				t.Fatalf("after the withdrawal: %+v %v %v", rec, found, err)
			}
			verifyClean(t, e, 1)
		}
		verifyClean(t, open(t, m.CrashClone(0), engine.Options{Clock: c.now}), 1)
	}
}

// A withdrawn claim does not keep its identifier for its own request, whatever its generation.
func TestWithdrawnClaimIsClaimedWithAnyFingerprint(t *testing.T) {
	e, _, c := openAt(t, engine.Options{})
	ev := event("a")
	ev.Window = time.Minute
	for i, fingerprint := range []string{"first", "second", "third"} {
		c.set(noon.Add(time.Duration(i) * time.Hour))
		ev.Fingerprint = fingerprint
		r := claim(t, e, ev)
		wantVerdict(t, r, engine.Claimed)
		unclaim(t, e, ev, r.Record)
		ev.Fingerprint = "another"
		wantVerdict(t, claim(t, e, ev), engine.Claimed)
	}
	verifyClean(t, e, 1)
}

func TestRollbackKeepsAWithdrawnClaim(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	rec := claim(t, e, event("a")).Record
	update(t, e, func(tx *engine.Tx) {
		sp, err := tx.Savepoint()
		if err == nil {
			err = driver.Unclaim(tx, event("a"), rec)
		}
		if err = errors.Join(err, tx.RollbackTo(sp)); err != nil {
			t.Fatal(err)
		}
		mustPut(t, tx, "k", "v")
	})
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
	verifyClean(t, e, 1)
}

func TestClaimThatChangesBeforeItsWithdrawalIsAConflict(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	rec := claim(t, e, event("a")).Record
	err := e.Update(ctx, func(tx *engine.Tx) error {
		if err := driver.Unclaim(tx, event("a"), rec); err != nil {
			t.Error(err)
		}
		forget(t, e, event("a"))
		later := event("a")
		later.Origin.Offset = 1000
		wantVerdict(t, claim(t, e, later), engine.Claimed)
		return nil
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("the update: %v", err)
	}
	if r := claim(t, e, event("a")); r.Verdict != engine.Duplicate || r.Record.Origin.Offset != 1000 {
		t.Errorf("told %+v", r)
	}
	verifyClean(t, e, 1)
}

// The withdrawal of others does not fail.
func TestClaimWhoseWeekIsDroppedIsNotWithdrawn(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 1})
	old := at("old", weeksLater(-1))
	rec := claim(t, e, old).Record
	other := claim(t, e, event("other")).Record
	var told []error
	err := e.Update(ctx, func(tx *engine.Tx) error {
		told = append(told, driver.Unclaim(tx, old, rec))
		if len(told) == 1 {
			if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); err != nil {
				t.Fatal(err)
			}
		}
		return driver.Unclaim(tx, event("other"), other)
	}, engine.Retries(1))
	if err != nil || len(told) != 2 || told[0] != nil || !errors.Is(told[1], engine.ErrNotClaimed) {
		t.Errorf("the update: %v, Unclaim: %v", err, told)
	}
	verifyClean(t, e, 0)
}

// A claim that another transaction holds, here to reopen it, is not withdrawn at the same time.
func TestClaimThatIsHeldIsNotWithdrawn(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	var letter engine.ClaimRecord
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("a"), engine.Claimed)
		var err error
		if letter, err = tx.DeadLetter(event("a")); err != nil {
			t.Fatal(err)
		}
	})
	update(t, e, func(tx *engine.Tx) {
		if r, err := tx.TryReopen(event("a"), 0); err != nil || r.Verdict != engine.Claimed {
			t.Fatalf("reopened: %+v, %v", r, err)
		}
		err := e.Update(ctx, func(other *engine.Tx) error { return driver.Unclaim(other, event("a"), letter) })
		if !errors.Is(err, engine.ErrConflict) {
			t.Errorf("the other update: %v", err)
		}
	})
	if rec, found, err := e.Admin().Lookup(ctx, "billing", []byte("a"), noon); err != nil || !found || rec.Generation != 1 {
		t.Errorf("%+v %v %v", rec, found, err)
	}
	verifyClean(t, e, 1)
}

// A claim and its removal may meet in one batch of the store.
func TestClaimWithdrawnAndMadeAgainInOneBatch(t *testing.T) {
	e, m, c := openAt(t, engine.Options{})
	rec := claim(t, e, event("a")).Record
	m.HoldSyncs() // later calls share batches
	done := make(chan error, 3)
	go func() {
		done <- e.Update(ctx, func(tx *engine.Tx) error { return driver.Unclaim(tx, event("a"), rec) })
	}()
	for i := range 2 {
		go func() {
			ev := event("a")
			ev.Origin.Offset = int64(100 + i)
			_, err := e.TryClaim(ctx, ev)
			done <- err
		}()
	}
	m.ReleaseSyncs()
	for range 3 {
		if err := receive(t, done); err != nil {
			t.Error(err)
		}
	}
	claim(t, e, event("a")) // in any order, there is one claim now
	verifyClean(t, e, 1)
	verifyClean(t, open(t, m.CrashClone(0), engine.Options{Clock: c.now}), 1)
}
