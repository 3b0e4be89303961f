package engine_test

import (
	"errors"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// again opens the store of a crash anew at noon, some weeks later.
func again(t *testing.T, m *storetest.Mem, weeks int) (*engine.Engine, *storetest.Mem) {
	t.Helper()
	m = m.CrashClone(0)
	return open(t, m, engine.Options{Clock: (&clock{t: weeksLater(weeks)}).now}), m
}

func TestAStoreWithoutClaimsFollowsTheClock(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, engine.Options{Clock: (&clock{t: weeksLater(500)}).now}) // ahead
	wantOldest(t, e, 496)
	update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "1") })
	wantVerdict(t, claim(t, e, event("a")), engine.TooOld)
	e, m = again(t, m, 0)
	wantOldest(t, e, -4)
	wantKept(t, e, map[string]string{"k": "1"})
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
	verifyClean(t, e, 1)
	for _, weeks := range []int{500, 0, -500} { // it has a claim
		e, m = again(t, m, weeks)
		wantOldest(t, e, -4)
	}
	e, m = again(t, m, 0)
	forget(t, e, event("a"))
	e, _ = again(t, m, 500) // it had one
	wantOldest(t, e, -4)
}

// A hold is not passed: its owner may be about to claim the events of that week.
func TestTheClockRaisesTheOldestWeekOfAStoreWithoutClaimsToItsHoldsOnly(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, engine.Options{})
	wantOldest(t, e, -4)
	if err := e.SetHold(ctx, "group", weeksLater(-2)); err != nil {
		t.Fatal(err)
	}
	e, m = again(t, m, 3)
	wantOldest(t, e, -2)
	e, m = again(t, m, 0) // and lowered again
	wantOldest(t, e, -4)
	if err := e.SetHold(ctx, "group", weeksLater(-30)); err != nil {
		t.Fatal(err)
	}
	e, _ = again(t, m, 3)
	wantOldest(t, e, -4)
}

func TestADropEndsThatTheClockSetsTheOldestWeek(t *testing.T) {
	for name, drop := range map[string]func(e *engine.Engine) error{
		"a week": func(e *engine.Engine) error {
			_, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek())
			return err
		},
		"all": func(e *engine.Engine) error { _, err := e.Retention().DropAllExpired(ctx); return err },
		"a scope": func(e *engine.Engine) error {
			wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
			_, err := e.Retention().DropScope(ctx, planned(t, e, "billing"))
			return err
		},
	} {
		e, m, c := openAt(t, engine.Options{})
		c.set(weeksLater(1))
		if err := drop(e); err != nil {
			t.Fatal(name, err)
		}
		oldest := e.Retention().OldestWeek()
		for _, weeks := range []int{-100, 0, 100} {
			if e, _ := again(t, m, weeks); e.Retention().OldestWeek() != oldest {
				t.Errorf("%s: the oldest week is %v, was %v", name, e.Retention().OldestWeek(), oldest)
			}
		}
		if err := e.Retention().LowerOldestWeek(ctx, oldest-1); name != "a scope" && !errors.Is(err, engine.ErrDropped) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "a scope" { // whose own mark remains
			wantVerdict(t, claim(t, e, event("a")), engine.TooOld)
		}
	}
}

func TestTheOldestWeekIsLoweredOnlyByACallOnceThereAreClaims(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, engine.Options{AllowedSkew: 20 * 7 * 24 * engine.DefaultAllowedSkew, Clock: (&clock{t: weeksLater(10)}).now})
	wantVerdict(t, claim(t, e, at("ahead", weeksLater(10))), engine.Claimed)
	e, m = again(t, m, 0)
	wantVerdict(t, claim(t, e, event("a")), engine.TooOld)
	week := weekOf(t, weeksLater(-4))
	if err := e.Retention().LowerOldestWeek(ctx, week); err != nil {
		t.Fatal(err)
	}
	wantOldest(t, e, -4)
	if err := e.Retention().LowerOldestWeek(ctx, week+1); err != nil {
		t.Error(err)
	}
	wantOldest(t, e, -4)
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
	e, _ = again(t, m, 0) // it is durable
	wantOldest(t, e, -4)
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
	wantVerdict(t, claim(t, e, at("ahead", weeksLater(10))), engine.TooNew)
	verifyClean(t, e, 2)
	if _, err := e.Retention().DropWeek(ctx, week); err != nil {
		t.Fatal(err)
	}
	if err := e.Retention().LowerOldestWeek(ctx, week); !errors.Is(err, engine.ErrDropped) {
		t.Errorf("a dropped week: %v", err)
	}
}
