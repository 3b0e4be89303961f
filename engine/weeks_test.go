package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

func weekOf(t testing.TB, at time.Time) weekbucket.Week {
	t.Helper()
	w, err := weekbucket.Of(at)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func at(id string, when time.Time) engine.Event {
	ev := event(id)
	ev.Time = when
	return ev
}

func weeksLater(n int) time.Time { return noon.AddDate(0, 0, 7*n) }

// inWeeks returns n events in each of the weeks from-to, counted from that of noon, in two scopes.
func inWeeks(from, to, n int) (events []engine.Event) {
	for w := from; w <= to; w++ {
		for i := range n {
			ev := at(fmt.Sprint("w", w, "-", i), weeksLater(w))
			ev.Scope = []string{"billing", "mail"}[i%2]
			events = append(events, ev)
		}
	}
	return events
}

// openAt opens an empty store with a clock at noon, which belongs to the test.
func openAt(t testing.TB, o engine.Options) (*engine.Engine, *storetest.Mem, *clock) {
	t.Helper()
	c := &clock{t: noon}
	o.Clock = c.now
	if o.ExpectedPerWeek == 0 {
		o.ExpectedPerWeek = 1000 // small filters, quick tests
	}
	e, m := openMem(t, o)
	return e, m, c
}

func wantOldest(t testing.TB, e *engine.Engine, weeksFromNoon int) {
	t.Helper()
	if got, want := e.Retention().OldestWeek(), weekOf(t, weeksLater(weeksFromNoon)); got != want {
		t.Fatalf("oldest retained week is %s, want %s", got, want)
	}
}

func wantDrop(t testing.TB, r engine.DropReport, err error, weeks, buckets int, heldBy string) {
	t.Helper()
	if err != nil || r.Weeks != weeks || r.Buckets != buckets || r.HeldBy != heldBy {
		t.Fatalf("dropped %d weeks, %d buckets, held by %q, %v; want %d, %d, %q", r.Weeks, r.Buckets, r.HeldBy, err, weeks, buckets, heldBy)
	}
}

func reclaimed(t testing.TB, e *engine.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := e.Retention().Reclaimed(ctx); err != nil {
		t.Fatal(err)
	}
}

func bucketsOf(t testing.TB, m *storetest.Mem) (list []storage.Bucket) {
	t.Helper()
	if err := m.Buckets(func(b storage.Bucket) error { list = append(list, b); return nil }); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestNewStoreBeginsWithTheWeeksOfItsRetention(t *testing.T) {
	for _, c := range []struct {
		retention int
		now       time.Time
		want      time.Time
	}{
		{0, noon, weeksLater(-4)},
		{1, noon, weeksLater(-1)},
		{52, noon, weeksLater(-52)},
		{engine.KeepAll, noon, weekbucket.Min.Start()},
		{4, weekbucket.Week(2).Start(), weekbucket.Min.Start()},
		{1, time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC), time.Date(2026, 2, 23, 0, 0, 0, 0, time.UTC)},
		{1, time.Date(2026, 3, 1, 23, 59, 59, 999e6, time.UTC), time.Date(2026, 2, 16, 0, 0, 0, 0, time.UTC)},
	} {
		e, m := openMem(t, engine.Options{RetentionWeeks: c.retention, Clock: (&clock{t: c.now}).now})
		if got := e.Retention().OldestWeek(); got != weekOf(t, c.want) {
			t.Errorf("retention %d at %v: oldest %s, want %s", c.retention, c.now, got, weekOf(t, c.want))
		}
		mark, found, err := m.CrashClone(0).State([]byte("moldest"))
		if err != nil || !found || string(mark) != string(e.Retention().OldestWeek().AppendKey(nil)) {
			t.Errorf("durable mark %x %v %v", mark, found, err)
		}
	}
}

func TestTooOldIsDecidedByTheMarkNotByTheClock(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 2})
	edge := weekOf(t, weeksLater(-2)).Start()
	wantVerdict(t, claim(t, e, at("before", edge.Add(-time.Millisecond))), engine.TooOld)
	wantVerdict(t, claim(t, e, at("first", edge)), engine.Claimed)
	c.set(weeksLater(100))
	wantVerdict(t, claim(t, e, at("first", edge)), engine.Duplicate)
	wantVerdict(t, claim(t, e, at("another", edge)), engine.Claimed)
	c.set(weeksLater(-100))
	wantVerdict(t, claim(t, e, at("first", edge)), engine.TooNew)
	c.set(noon)
	for _, retention := range []int{1, 52, engine.KeepAll} {
		e := open(t, m.CrashClone(0), engine.Options{RetentionWeeks: retention, Clock: c.now})
		wantOldest(t, e, -2)
		wantVerdict(t, claim(t, e, at("first", edge)), engine.Duplicate)
		wantVerdict(t, claim(t, e, at("before", edge.Add(-1))), engine.TooOld)
		if err := e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(at("before", edge.Add(-1)))
			wantVerdict(t, r, engine.TooOld)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDropExpiredDropsOldestFirstAndABoundedNumber(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	events := inWeeks(-4, 0, 10)
	mustExpect(t, e, events, engine.Claimed)
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	c.set(weeksLater(5))
	r, err = e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 2, 4, "")
	wantOldest(t, e, -2)
	mustExpect(t, e, events[:20], engine.TooOld)
	mustExpect(t, e, events[20:], engine.Duplicate)
	verifyClean(t, e, 30)
	if n := len(bucketsOf(t, m)); n != 6 {
		t.Fatal(n, "buckets are left")
	}
	if w, err := e.Weeks(ctx); err != nil || len(w) != 3 || w[0].Week != e.Retention().OldestWeek() || w[0].Claims != 10 {
		t.Fatal(w, err)
	}
	for _, id := range []string{"w-4-0", "w-3-0"} {
		if _, found, err := e.Admin().Lookup(ctx, "billing", []byte(id), weeksLater(-4)); found || err != nil {
			t.Fatal("a dropped claim is found:", err)
		}
	}
	r, err = e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 3, 6, "")
	wantOldest(t, e, 1)
	mustExpect(t, e, events, engine.TooOld)
	verifyClean(t, e, 0)
	reclaimed(t, e)
	if u := stats(t, e).Store; u.ReclaimableBytes != 0 {
		t.Fatalf("%+v", u)
	}
	r, err = e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	e = open(t, m.CrashClone(0), engine.Options{Clock: c.now})
	wantOldest(t, e, 1)
	mustExpect(t, e, events, engine.TooOld)
}

func TestKeepAllDropsNothing(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: engine.KeepAll})
	events := inWeeks(-200, -198, 2)
	mustExpect(t, e, events, engine.Claimed)
	c.set(weeksLater(1000))
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	r, err = e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	mustExpect(t, e, events, engine.Duplicate)
}

// in2099 is the time that a wrong clock shows.
var in2099 = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)

func TestClockJumpsDoNotEmptyTheStore(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 4})
	events := inWeeks(-4, 0, 4)
	mustExpect(t, e, events, engine.Claimed)
	c.set(in2099)
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 2, 4, "")
	mustExpect(t, e, events[8:], engine.Duplicate)
	for _, back := range []time.Time{noon, weeksLater(-100), time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)} {
		c.set(back)
		r, err = e.Retention().DropExpired(ctx)
		wantDrop(t, r, err, 0, 0, "")
		wantOldest(t, e, -2)
	}
	c.set(noon)
	mustExpect(t, e, events[8:], engine.Duplicate)
	c.set(time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC))
	if _, err := e.Retention().DropExpired(ctx); err == nil {
		t.Fatal("a clock in the year 12000 is used")
	}
	wantOldest(t, e, -2)
	c.set(noon)
	mustExpect(t, e, events[8:], engine.Duplicate)
	c.set(in2099)
	for _, weeks := range []int{2, 0, 0} {
		r, err = e.Retention().DropExpired(ctx)
		wantDrop(t, r, err, weeks, 2*weeks, "")
	}
	c.set(noon)
	mustExpect(t, e, events[16:], engine.Duplicate)
}

// The current week is retained, whatever the number of runs, also if the wrong clock has let claims
// into weeks that are far ahead.
func TestClockJumpsLeaveTheCurrentWeekOfAYoungStore(t *testing.T) {
	for name, claims := range map[string]func(t *testing.T, e *engine.Engine){
		"no claims meanwhile": func(*testing.T, *engine.Engine) {},
		"an event without a time": func(t *testing.T, e *engine.Engine) {
			wantVerdict(t, claim(t, e, arriving("x", time.Hour)), engine.Claimed)
		},
		"an event of the next minute": func(t *testing.T, e *engine.Engine) {
			wantVerdict(t, claim(t, e, at("x", in2099.Add(time.Minute))), engine.Claimed)
		},
	} {
		for _, first := range []int{-1, 0} {
			t.Run(fmt.Sprint(name, " ", first), func(t *testing.T) {
				e, m, c := openAt(t, engine.Options{RetentionWeeks: 4, ScopeRetention: map[string]int{"mail": 1, "idle": 2}})
				events := inWeeks(first, 0, 4)
				mustExpect(t, e, events, engine.Claimed)
				c.set(in2099)
				claims(t, e)
				for range 3 {
					if r, err := e.Retention().DropExpired(ctx); err != nil || r.Behind == 0 {
						t.Fatalf("%+v, %v", r, err)
					}
				}
				for _, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{Clock: c.now})} {
					c.set(noon)
					mustExpect(t, e, events[len(events)-4:], engine.Duplicate)
					idle := at("new", noon)
					idle.Scope = "idle"
					mustExpect(t, e, []engine.Event{at("new", noon), idle}, engine.Claimed)
				}
			})
		}
	}
}

func TestClockJumpsLeaveAnEmptyStore(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 4, ScopeRetention: map[string]int{"mail": 1}})
	c.set(in2099)
	for range 3 {
		r, err := e.Retention().DropExpired(ctx)
		wantDrop(t, r, err, 0, 0, "")
		if len(r.Scopes) > 0 {
			t.Errorf("%+v", r)
		}
	}
	c.set(noon)
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
}

// A store without new claims keeps the newest week that has ended, until it has newer claims.
func TestIdleStoreKeepsItsNewestWeek(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 4})
	events := inWeeks(-4, 0, 4)
	mustExpect(t, e, events, engine.Claimed)
	c.set(weeksLater(10))
	for _, want := range []int{2, 2, 0} {
		r, err := e.Retention().DropExpired(ctx)
		wantDrop(t, r, err, want, 2*want, "")
	}
	mustExpect(t, e, events[:16], engine.TooOld)
	mustExpect(t, e, events[16:], engine.Duplicate)
	mustExpect(t, e, inWeeks(10, 10, 4), engine.Claimed)
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	c.set(weeksLater(11))
	for _, want := range [][2]int{{2, 2}, {5, 0}} { // weeks, buckets
		r, err = e.Retention().DropExpired(ctx)
		wantDrop(t, r, err, want[0], want[1], "")
	}
	wantOldest(t, e, 7)
	mustExpect(t, e, events, engine.TooOld)
	mustExpect(t, e, inWeeks(10, 10, 4), engine.Duplicate)

	c.set(weeksLater(30))
	r, err = e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 19, 2, "")
	verifyClean(t, e, 0)
}

// The counts of claims are incomplete during a rebuild: the weeks with claims are read from the
// store.
func TestExpiryIsBoundedWhileFiltersAreRebuilt(t *testing.T) {
	o := small
	o.RetentionWeeks = 4
	o.ScopeRetention = map[string]int{"mail": 3}
	e, m, c := openAt(t, o)
	mustExpect(t, e, inWeeks(-4, -4, 4), engine.Claimed)
	if _, err := e.Retention().DropWeek(ctx, weekOf(t, weeksLater(-4))); err != nil {
		t.Fatal(err)
	}
	events := inWeeks(-1, 0, 20)
	mustExpect(t, e, events, engine.Claimed)
	release := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(release) })
	m = (&past{Mem: m, e: e}).lost(t)
	scans := heldScan(m, release)
	scans.journal = func(uint64, func(uint64, []byte) error) error { return nil } // was trimmed
	o.Clock = c.now
	e = open(t, scans, o)
	t.Cleanup(goOn)
	if !stats(t, e).FilterRebuilding {
		t.Fatal("the filters are loaded")
	}
	c.set(in2099)
	for _, want := range []int{3, 0} {
		r, err := e.Retention().DropExpired(ctx)
		wantDrop(t, r, err, want, 2*want/3, "")
	}
	wantOldest(t, e, 0)
	goOn()
	awaitTrust(t, e)
	c.set(noon)
	mustExpect(t, e, events[20:], engine.Duplicate)
}

// A claim that is forgotten during a rebuild leaves no trace of its week: the week before, which is then the
// newest one with claims, is not dropped.
func TestAForgottenClaimKeepsNoWeekWhileFiltersAreRebuilt(t *testing.T) {
	o := small
	o.RetentionWeeks = 4
	e, m, c := openAt(t, o)
	events := inWeeks(-3, -3, 20)
	last := at("last", weeksLater(-1))
	mustExpect(t, e, append(slices.Clip(events), last), engine.Claimed)
	m = (&past{Mem: m, e: e}).lost(t)
	release := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(release) })
	scans := heldScan(m, release)
	scans.journal = func(uint64, func(uint64, []byte) error) error { return nil } // was trimmed
	o.Clock = c.now
	e = open(t, scans, o)
	t.Cleanup(goOn)
	eventually(t, "the rebuild", func() bool { return stats(t, e).FilterRebuilt > 0 }) // its scan has begun
	if found, err := e.Admin().Forget(ctx, last.Scope, last.ID, last.Time); err != nil || !found {
		t.Fatal(found, err)
	}
	if !stats(t, e).FilterRebuilding {
		t.Fatal("the filters are loaded")
	}
	c.set(in2099)
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 1, 0, "")
	goOn()
	awaitTrust(t, e)
	c.set(noon)
	mustExpect(t, e, events, engine.Duplicate)
	verifyClean(t, e, 20)
}

func TestFutureEventMakesNoOtherWeekExpire(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 1, AllowedSkew: 300 * 24 * time.Hour})
	mustExpect(t, e, inWeeks(-1, 0, 2), engine.Claimed)
	wantVerdict(t, claim(t, e, at("future", weeksLater(40))), engine.Claimed)
	wantVerdict(t, claim(t, e, at("too far", weeksLater(60))), engine.TooNew)
	r, err := e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	mustExpect(t, e, inWeeks(-1, 0, 2), engine.Duplicate)
}

func TestHoldsKeepTheirWeekAndAllLaterOnes(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 2), engine.Claimed)
	hold := func(name string, week int) {
		t.Helper()
		if err := e.SetHold(ctx, name, weeksLater(week)); err != nil {
			t.Fatal(err)
		}
	}
	hold("slow", -1)
	hold("slowest", -3)
	hold("fast", 0)
	c.set(weeksLater(50))
	r, err := e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 1, 2, "slowest")
	wantOldest(t, e, -3)

	hold("slowest", -2) // moved
	r, err = e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 1, 2, "slowest")
	if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); !errors.Is(err, engine.ErrHeld) || !strings.Contains(err.Error(), "slowest") {
		t.Fatal("a held week is dropped on request:", err)
	}

	boom := errors.New("boom")
	err = e.Update(ctx, func(tx *engine.Tx) error { // rolled back
		return errors.Join(tx.ReleaseHold("slowest"), tx.SetHold("new", weeksLater(-4)), boom)
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	err = e.Update(ctx, func(tx *engine.Tx) error {
		s, err := tx.Savepoint()
		return errors.Join(err, tx.ReleaseHold("slowest"), tx.RollbackTo(s), tx.Put([]byte("k"), nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err = e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 0, 0, "slowest")

	e = open(t, m.CrashClone(0), engine.Options{Clock: c.now}) // durable
	want := []engine.Hold{{Name: "fast", At: weeksLater(0)}, {Name: "slow", At: weeksLater(-1)}, {Name: "slowest", At: weeksLater(-2)}}
	if got := e.Holds(); !slices.EqualFunc(got, want, func(a, b engine.Hold) bool { return a.Name == b.Name && a.At.Equal(b.At) }) {
		t.Fatalf("holds after a crash: %v", got)
	}
	if got := e.HoldsOf(); len(got) != 0 {
		t.Errorf("the holds of no names: %v", got)
	}
	if got := e.HoldsOf("slow", "nobody"); len(got) != 1 || got[0].Name != "slow" || !got[0].At.Equal(weeksLater(-1)) {
		t.Errorf("one hold: %v", got)
	}
	r, err = e.Retention().DropAllExpired(ctx)
	wantDrop(t, r, err, 0, 0, "slowest")
	for i, name := range []string{"slowest", "slow", "fast"} {
		if err := e.ReleaseHold(ctx, name); err != nil {
			t.Fatal(err)
		}
		r, err = e.Retention().DropAllExpired(ctx)
		wantDrop(t, r, err, []int{1, 1, 46}[i], []int{2, 2, 2}[i], []string{"slow", "fast", ""}[i])
	}
	if err := e.ReleaseHold(ctx, "nobody"); err != nil || len(e.Holds()) != 0 {
		t.Fatal(err, e.Holds())
	}
}

// A hold on a week that was dropped before is not to blame while no week is expired.
func TestOldHoldKeepsNothingWhileNoWeekIsExpired(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 2, ScopeRetention: map[string]int{"mail": 1}})
	mustExpect(t, e, inWeeks(-1, -1, 2), engine.Claimed)
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	if r.Scopes["mail"] != weekOf(t, weeksLater(-1)) {
		t.Fatalf("%+v", r)
	}
	if err := e.SetHold(ctx, "old", weeksLater(-10)); err != nil {
		t.Fatal(err)
	}
	r, err = e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "")
	c.set(weeksLater(1))
	r, err = e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 0, "old")
	wantOldest(t, e, -2)
}

func TestHoldAtAWeeksEdgeKeepsThatWeek(t *testing.T) {
	for _, c := range []struct {
		at   time.Duration // from the start of week -2
		want int
	}{{-time.Nanosecond, -3}, {0, -2}, {7*24*time.Hour - time.Nanosecond, -2}, {7 * 24 * time.Hour, -1}} {
		e, m, clk := openAt(t, engine.Options{RetentionWeeks: 4})
		if err := e.SetHold(ctx, "edge", weekOf(t, weeksLater(-2)).Start().Add(c.at)); err != nil {
			t.Fatal(err)
		}
		clk.set(weeksLater(50))
		for _, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{Clock: clk.now})} {
			if _, err := e.Retention().DropAllExpired(ctx); err != nil {
				t.Fatal(err)
			}
			wantOldest(t, e, c.want)
		}
	}
}

func TestRejectedHoldsChangeNothing(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	var refused *engine.ArgumentError
	for _, err := range []error{
		e.SetHold(ctx, "", noon), e.SetHold(ctx, " ", noon), e.SetHold(ctx, strings.Repeat("x", 256), noon),
		e.SetHold(ctx, "zero", time.Time{}), e.SetHold(ctx, "late", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)),
		e.ReleaseHold(ctx, ""),
	} {
		if !errors.As(err, &refused) {
			t.Error(err)
		}
	}
	if h := e.Holds(); len(h) != 0 {
		t.Error(h)
	}
}

func TestDropWeekDropsTheOldestOnly(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-2, 0, 2), engine.Claimed)
	week := func(n int) weekbucket.Week { return weekOf(t, weeksLater(n)) }
	for _, w := range []weekbucket.Week{week(-1), week(0), week(1), week(-5), week(-3), weekbucket.Max, weekbucket.Min} {
		if _, err := e.Retention().DropWeek(ctx, w); !errors.Is(err, engine.ErrNotOldestWeek) {
			t.Errorf("dropping %s: %v", w, err)
		}
	}
	wantOldest(t, e, -4)
	r, err := e.Retention().DropWeek(ctx, week(-4)) // empty
	wantDrop(t, r, err, 1, 0, "")
	r, err = e.Retention().DropWeek(ctx, week(-2)) // the first with claims, and the empty one before it
	wantDrop(t, r, err, 2, 2, "")
	mustExpect(t, e, inWeeks(-2, -2, 2), engine.TooOld)
	mustExpect(t, e, inWeeks(-1, 0, 2), engine.Duplicate)
	if _, err := e.Retention().DropWeek(ctx, week(-2)); !errors.Is(err, engine.ErrNotOldestWeek) {
		t.Error("twice:", err)
	}
	if err := e.SetHold(ctx, "h", weeksLater(0)); err != nil {
		t.Fatal(err)
	}
	r, err = e.Retention().DropWeek(ctx, week(-1)) // the hold keeps only later ones
	wantDrop(t, r, err, 1, 2, "")
	if _, err = e.Retention().DropWeek(ctx, week(0)); !errors.Is(err, engine.ErrHeld) {
		t.Error(err)
	}
	verifyClean(t, e, 2)
}

// afterDropCrash opens the state after a crash in a drop of the weeks -4 and -3 and returns the
// violations.
func afterDropCrash(t *testing.T, m *storetest.Mem, events []engine.Event) error {
	t.Helper()
	e, err := engine.Open(m, engine.Options{RetentionWeeks: 4, ExpectedPerWeek: 1000, Clock: (&clock{t: noon}).now})
	if err != nil {
		return err
	}
	defer e.Close()
	oldest := e.Retention().OldestWeek()
	if oldest != weekOf(t, weeksLater(-4)) && oldest != weekOf(t, weeksLater(-2)) {
		return fmt.Errorf("half a drop: oldest week is %s", oldest)
	}
	kept := 0
	for _, ev := range events {
		want := engine.Duplicate
		if weekOf(t, ev.Time) < oldest {
			want = engine.TooOld
		} else {
			kept++
		}
		if err := expect(e, []engine.Event{ev}, want); err != nil {
			return err
		}
	}
	end := time.Now().Add(time.Minute)
	for left := true; left; time.Sleep(time.Millisecond) {
		left = slices.ContainsFunc(bucketsOf(t, m), func(b storage.Bucket) bool { return b.Week < oldest })
		if _, owed, _ := m.State([]byte("mdrop")); owed {
			left = true
		}
		if time.Now().After(end) {
			return errors.New("the drop is never completed")
		}
	}
	reclaimed(t, e)
	if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 || int(r.Claims) != kept {
		return fmt.Errorf("verify: %d claims, %d problems, %w; want %d claims", r.Claims, r.Total, err, kept)
	}
	return expect(e, events[len(events)-10:], engine.Duplicate)
}

// crashClones returns a function that ends the run and returns the states after a crash before each
// call of the store since, and after all of them.
func crashClones(m *storetest.Mem) (end func() map[string]*storetest.Mem) {
	taken := map[string]*storetest.Mem{}
	var mu sync.Mutex
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait, storetest.OpBuckets, storetest.OpState, storetest.OpDrop, storetest.OpReclaim} {
		m.Before(op, func(call int) error {
			mu.Lock()
			defer mu.Unlock()
			for keep := range 2 {
				taken[fmt.Sprintf("before %s %d, %d unsynced batches kept", op, call, keep)] = m.CrashClone(keep)
			}
			return nil
		})
	}
	return func() map[string]*storetest.Mem {
		mu.Lock()
		defer mu.Unlock()
		taken["after all"] = m.CrashClone(0)
		return maps.Clone(taken) // the engine's background work still adds to the original
	}
}

// crashesOf drops the weeks -4 and -3 and returns the states after a crash before each call of the
// store.
func crashesOf(t *testing.T, m *storetest.Mem, s storage.Store) (crashes map[string]*storetest.Mem, events []engine.Event) {
	t.Helper()
	c := &clock{t: noon}
	e := open(t, s, engine.Options{RetentionWeeks: 4, ExpectedPerWeek: 1000, Clock: c.now})
	events = inWeeks(-4, 0, 10)
	mustExpect(t, e, events, engine.Claimed)
	end := crashClones(m)
	c.set(weeksLater(2))
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 2, 4, "")
	reclaimed(t, e)
	return end(), events
}

func TestDropInterruptedByACrashAtAnyStepIsCompletedAtOpen(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	crashes, events := crashesOf(t, m, m)
	if len(crashes) < 20 {
		t.Fatal("only", len(crashes), "steps")
	}
	for when, m := range crashes {
		if err := afterDropCrash(t, m, events); err != nil {
			t.Errorf("crash %s: %v", when, err)
		}
	}
}

func TestDropThatFailedHalfwayIsCompletedAtOpen(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	c := &clock{t: noon}
	e := open(t, m, engine.Options{RetentionWeeks: 4, Clock: c.now})
	events := inWeeks(-4, 0, 10)
	mustExpect(t, e, events, engine.Claimed)
	eio := errors.New("EIO")
	m.FailAt(storetest.OpDrop, 1, eio)
	c.set(weeksLater(2))
	if _, err := e.Retention().DropExpired(ctx); !errors.Is(err, eio) || !errors.Is(err, engine.ErrStopped) {
		t.Fatal(err)
	}
	if _, err := e.TryClaim(ctx, events[0]); !errors.Is(err, engine.ErrStopped) {
		t.Fatal("a verdict after the store failed:", err)
	}
	if err := afterDropCrash(t, m.CrashClone(0), events); err != nil {
		t.Fatal(err)
	}
}

// The control of the two tests above: a store that loses the mark violates the rule.
func TestDropWithoutADurableMarkIsDetected(t *testing.T) {
	m := storetest.NewMem(storage.Identity{})
	lossy := &tampered{Mem: m}
	lossy.apply = func(b *storage.Batch) (func() error, error) {
		c := *b
		if c.Seq > 1 {
			c.State = slices.DeleteFunc(slices.Clone(b.State), func(w storage.StateWrite) bool { return string(w.Key) == "moldest" })
		}
		return m.Apply(&c)
	}
	crashes, events := crashesOf(t, m, lossy)
	seen := 0
	for _, m := range crashes {
		if err := afterDropCrash(t, m, events); err != nil {
			seen++
		}
	}
	if seen == 0 {
		t.Fatal("dropped claims were claimed again without detection")
	}
}

func TestTheOldestWeekIsReturnedWhenItsMarkIsDurable(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	events := inWeeks(-4, 0, 4)
	mustExpect(t, e, events, engine.Claimed)
	c.set(weeksLater(2))
	m.HoldSyncs()
	dropped := make(chan error, 1)
	go func() {
		_, err := e.Retention().DropExpired(ctx)
		dropped <- err
	}()
	awaitHeld(t, m)
	told := e.Retention().OldestWeek()
	m.ReleaseSyncs()
	if err := receive(t, dropped); err != nil {
		t.Fatal(err)
	}
	wantOldest(t, e, -2)
	if want := weekOf(t, weeksLater(-4)); told != want {
		t.Errorf("a power failure would still have undone it: %s was returned, want %s", told, want)
	}
}

func TestCanceledDropIsCompletedByTheNextOne(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
	c.set(weeksLater(2))
	given, cancel := context.WithCancel(ctx)
	m.Before(storetest.OpBuckets, func(int) error { cancel(); return nil })
	if _, err := e.Retention().DropExpired(given); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantOldest(t, e, -2)
	if n := len(bucketsOf(t, m)); n != 10 {
		t.Fatal(n, "buckets")
	}
	if _, err := e.Retention().DropExpired(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(bucketsOf(t, m)); n != 6 {
		t.Fatal(n, "buckets: those of the dropped weeks still exist")
	}
	verifyClean(t, e, 12)
}

func TestDropThatWaitsForAnotherOneEndsWithItsContext(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
	reached, release := make(chan bool, 1), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(release) })
	defer goOn()
	m.Before(storetest.OpDrop, func(int) error { reached <- true; <-release; return nil })
	c.set(weeksLater(1))
	dropped := make(chan error, 1)
	go func() {
		_, err := e.Retention().DropExpired(ctx)
		dropped <- err
	}()
	receive(t, reached)
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	for name, drop := range map[string]func() error{
		"DropExpired": func() error { _, err := e.Retention().DropExpired(soon); return err },
		"DropScope":   func() error { _, err := e.Retention().DropScope(soon, engine.ScopeDropPlan{Scope: "a"}); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- drop() }()
		if err := receive(t, ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	goOn()
	if err := receive(t, dropped); err != nil {
		t.Fatal(err)
	}
	verifyClean(t, e, 16)
}

func TestTransactionThatClaimedInADroppedWeekFailsWhole(t *testing.T) {
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 4})
	pos := engine.OffsetKey{Group: "g", Topic: "t", Partition: 0}
	wantVerdict(t, claim(t, e, at("recent", weeksLater(-1))), engine.Claimed)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		for _, ev := range []engine.Event{at("old", weeksLater(-4)), at("new", noon)} {
			if r, err := tx.TryClaim(ev); err != nil || r.Verdict != engine.Claimed {
				t.Error(r, err)
			}
		}
		c.set(weeksLater(1))
		if r, err := e.Retention().DropExpired(ctx); err != nil || r.Weeks != 1 {
			t.Error(r, err)
		}
		c.set(noon)
		return errors.Join(tx.Put([]byte("k"), []byte("v")), tx.SetOffset(pos, engine.Offset{Next: 5}))
	}, engine.Retries(3))
	if !errors.Is(err, engine.ErrWeekDropped) {
		t.Fatal(err)
	}
	if _, found, err := e.Admin().Offset(ctx, pos); found || err != nil {
		t.Fatal("its offset is there:", err)
	}
	if err := e.Update(ctx, func(tx *engine.Tx) error {
		if _, found, err := tx.Get([]byte("k")); found || err != nil {
			t.Error("its write is there:", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, at("new", noon)), engine.Claimed)
	wantVerdict(t, claim(t, e, at("old", weeksLater(-4))), engine.TooOld)
}

// The week of an at-most-once claim may be dropped after the claim was prepared, and before it is
// decided.
func TestClaimInAWeekDroppedMeanwhileIsTooOld(t *testing.T) {
	for _, possible := range []bool{false, true} {
		e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
		old := at("old", weeksLater(-4))
		if possible {
			heldForPossible(t, e, old)
		}
		decide := e.Prepare(t, old)
		c.set(weeksLater(1))
		if r, err := e.Retention().DropAllExpired(ctx); err != nil || r.Weeks != 1 {
			t.Fatal(r, err)
		}
		wantVerdict(t, decide(), engine.TooOld)
		if list := bucketsOf(t, m); len(list) > 0 {
			t.Errorf("the dropped week has claims: %v", list)
		}
	}
}

func TestWeeksBeginOnMondayInUTCEverywhere(t *testing.T) {
	zone := func(name string) *time.Location {
		l, err := time.LoadLocation(name)
		if err != nil {
			t.Skip("no time zones here: ", err)
		}
		return l
	}
	date := time.Date
	e, m := openMem(t, engine.Options{RetentionWeeks: engine.KeepAll, AllowedSkew: limits.AllowedSkew,
		Clock: (&clock{t: date(2099, 6, 1, 0, 0, 0, 0, time.UTC)}).now})
	for i, c := range []struct {
		a, b time.Time
		same bool
	}{
		{date(2026, 3, 1, 23, 59, 59, 999e6, time.UTC), date(2026, 3, 2, 0, 0, 0, 0, time.UTC), false},
		{date(2026, 3, 2, 0, 0, 0, 0, time.UTC), date(2026, 3, 8, 23, 59, 59, 999999999, time.UTC), true},
		{date(2026, 3, 1, 23, 30, 0, 0, time.UTC), date(2026, 2, 23, 0, 30, 0, 0, time.UTC), true},
		// Sunday evening in New York is Monday in UTC; the clocks there change on 2026-03-08 and
		// 2026-11-01.
		{date(2026, 3, 8, 19, 59, 0, 0, zone("America/New_York")), date(2026, 3, 8, 20, 0, 0, 0, zone("America/New_York")), false},
		{date(2026, 3, 8, 20, 0, 0, 0, zone("America/New_York")), date(2026, 3, 9, 0, 0, 0, 0, time.UTC), true},
		{date(2026, 11, 1, 18, 59, 0, 0, zone("America/New_York")), date(2026, 11, 1, 19, 0, 0, 0, zone("America/New_York")), false},
		// Monday morning in Berlin is Sunday in UTC, one hour or two.
		{date(2026, 3, 30, 1, 59, 0, 0, zone("Europe/Berlin")), date(2026, 3, 30, 2, 0, 0, 0, zone("Europe/Berlin")), false},
		{date(2026, 10, 26, 0, 59, 0, 0, zone("Europe/Berlin")), date(2026, 10, 26, 1, 0, 0, 0, zone("Europe/Berlin")), false},
		{date(2026, 3, 30, 12, 0, 0, 0, zone("Pacific/Kiritimati")), date(2026, 3, 29, 22, 0, 0, 0, time.UTC), true},
		{date(1, 1, 1, 0, 0, 0, 1, time.UTC), date(1, 1, 7, 23, 59, 59, 0, time.UTC), true},
		{date(1, 1, 7, 23, 59, 59, 0, time.UTC), date(1, 1, 8, 0, 0, 0, 0, time.UTC), false},
		{date(1969, 12, 28, 23, 59, 59, 999e6, time.UTC), date(1969, 12, 29, 0, 0, 0, 0, time.UTC), false},
		{date(1969, 12, 31, 23, 59, 59, 999e6, time.UTC), date(1970, 1, 1, 0, 0, 0, 0, time.UTC), true},
		{date(2099, 12, 27, 23, 59, 59, 999e6, time.UTC), date(2099, 12, 28, 0, 0, 0, 0, time.UTC), false},
	} {
		id := fmt.Sprint("edge", i)
		wantVerdict(t, claim(t, e, at(id, c.a)), engine.Claimed)
		want := map[bool]engine.Verdict{true: engine.Duplicate, false: engine.Claimed}[c.same]
		if r := claim(t, e, at(id, c.b)); r.Verdict != want {
			t.Errorf("%v after %v: %v", c.b, c.a, r.Verdict)
		}
	}
	e2 := open(t, m.CrashClone(0), engine.Options{RetentionWeeks: engine.KeepAll})
	verifyClean(t, e2, int(stats(t, e).Verdicts[engine.Claimed]))
	var refused *engine.EventError
	for _, when := range []time.Time{{}, date(0, 12, 31, 0, 0, 0, 0, time.UTC), date(10000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if r, err := e.TryClaim(ctx, at("x", when)); !errors.As(err, &refused) || r.Verdict != engine.Failed {
			t.Errorf("%v: %v, %v", when, r.Verdict, err)
		}
	}
}

func TestClaimsContinueDuringADropAndWhileSpaceIsFreed(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
	c.set(weeksLater(1))
	reached, release := make(chan storetest.Op), map[storetest.Op]chan struct{}{}
	for _, op := range []storetest.Op{storetest.OpDrop, storetest.OpReclaim} {
		release[op] = make(chan struct{})
		m.Before(op, func(call int) error {
			if call == 1 {
				reached <- op
				<-release[op]
			}
			return nil
		})
	}
	dropped := make(chan error, 1)
	go func() {
		r, err := e.Retention().DropExpired(ctx)
		if r.Weeks != 1 {
			err = errors.Join(err, fmt.Errorf("%+v", r))
		}
		dropped <- err
	}()
	for n, op := range []storetest.Op{storetest.OpDrop, storetest.OpReclaim} {
		if got := receive(t, reached); got != op {
			t.Fatal(got)
		}
		wantVerdict(t, claim(t, e, at(fmt.Sprint("new", n), noon)), engine.Claimed)
		wantVerdict(t, claim(t, e, at(fmt.Sprint("new", n), noon)), engine.Duplicate)
		wantVerdict(t, claim(t, e, at("w-4-0", weeksLater(-4))), engine.TooOld)
		wantVerdict(t, claim(t, e, at("w-3-0", weeksLater(-3))), engine.Duplicate)
		if op == storetest.OpDrop {
			close(release[op])
			if err := receive(t, dropped); err != nil {
				t.Fatal(err)
			}
		}
	}
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := e.Retention().Reclaimed(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the space is not free, but:", err)
	}
	c.set(weeksLater(2)) // the next drop does not wait for the space of this one
	if r, err := e.Retention().DropExpired(ctx); err != nil || r.Weeks != 1 || r.Buckets != 2 {
		t.Fatal(r, err)
	}
	close(release[storetest.OpReclaim])
	reclaimed(t, e)
	if u := stats(t, e).Store; u.ReclaimableBytes != 0 {
		t.Fatalf("%+v", u)
	}
	if _, owed, err := m.State([]byte("mdrop")); owed || err != nil {
		t.Fatal("space is still not free:", err)
	}
	verifyClean(t, e, 14)
}

func TestSpaceThatIsNotFreeIsFreedAfterACrash(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
	reached, release := make(chan bool, 9), make(chan struct{})
	m.Before(storetest.OpReclaim, func(int) error { reached <- true; <-release; return nil })
	c.set(weeksLater(1))
	for i := range 2 {
		if _, err := e.Retention().DropExpired(ctx); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			receive(t, reached)
		}
		c.set(weeksLater(2))
	}
	crashed := m.CrashClone(0)
	close(release)
	var mu sync.Mutex
	given := map[storage.Bucket]bool{}
	s := &tampered{Mem: crashed, reclaim: func(_ context.Context, buckets []storage.Bucket) error {
		mu.Lock()
		defer mu.Unlock()
		for _, b := range buckets {
			given[b] = true
		}
		return nil
	}}
	e2 := open(t, s, engine.Options{Clock: c.now})
	eventually(t, "nothing is owed", func() bool { _, owed, _ := crashed.State([]byte("mdrop")); return !owed })
	mu.Lock()
	defer mu.Unlock()
	if len(given) != 4 {
		t.Fatalf("given back: %v", given)
	}
	verifyClean(t, e2, 12)
}

func TestReclaimedWaitsForARemovalThatOpenRepeats(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
	eio := errors.New("EIO")
	m.FailAt(storetest.OpDrop, 1, eio)
	c.set(weeksLater(1))
	if _, err := e.Retention().DropExpired(ctx); !errors.Is(err, eio) {
		t.Fatal(err)
	}
	crashed, held := m.CrashClone(0), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	crashed.Before(storetest.OpDrop, func(int) error { <-held; return nil })
	e2 := open(t, crashed, engine.Options{Clock: c.now})
	defer release()
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := e2.Retention().Reclaimed(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the week is not removed, but:", err)
	}
	release()
	reclaimed(t, e2)
	if left := len(bucketsOf(t, crashed)); left != 8 {
		t.Fatalf("%d buckets are left, want those of four weeks in two scopes", left)
	}
}

func TestFailureToFreeSpaceStopsTheEngine(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 4), engine.Claimed)
	eio := errors.New("EIO")
	m.FailAt(storetest.OpReclaim, 1, eio)
	c.set(weeksLater(1))
	if _, err := e.Retention().DropExpired(ctx); err != nil && !errors.Is(err, eio) {
		t.Fatal(err)
	}
	if err := e.Retention().Reclaimed(ctx); !errors.Is(err, eio) || !errors.Is(err, engine.ErrStopped) {
		t.Fatal(err)
	}
}

func TestVerifyDuringADropHasNothingToReport(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, inWeeks(-4, 0, 50), engine.Claimed)
	c.set(weeksLater(1))
	m.HoldSyncs() // the mark is decided and not durable
	dropped := make(chan error, 1)
	go func() { _, err := e.Retention().DropExpired(ctx); dropped <- err }()
	awaitHeld(t, m)
	verified := make(chan engine.VerifyReport, 1)
	go func() {
		r, err := e.Admin().Verify(ctx)
		if err != nil {
			t.Error(err)
		}
		verified <- r
	}()
	eventually(t, "the scan", func() bool { return m.Calls(storetest.OpScan) > 0 })
	time.Sleep(20 * time.Millisecond)
	m.ReleaseSyncs()
	if err := receive(t, dropped); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, verified); r.Total != 0 {
		t.Fatalf("%d problems: %.3q", r.Total, r.Problems)
	}
}

func TestConcurrentClaimsAndDrops(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 2, ExpectedPerWeek: 256, AllowedSkew: 7 * 24 * time.Hour}.WithSnapshotEvery(100))
	const weeks = 12
	var now atomic.Int64
	var taken sync.Map
	var work sync.WaitGroup
	var stop atomic.Bool
	for g := range 4 {
		work.Go(func() {
			for i := 0; !stop.Load(); i++ {
				w := int(now.Load())
				ev := at(fmt.Sprint(i/3), weeksLater(w-(i+g)%4))
				if g == 3 {
					_ = e.Update(ctx, func(tx *engine.Tx) error {
						r, err := tx.TryClaim(ev)
						if err == nil && r.Verdict == engine.Duplicate {
							return nil
						}
						return errors.Join(err, tx.Put([]byte("k"), []byte{byte(i)}))
					})
					continue
				}
				before := e.Retention().OldestWeek()
				r, err := e.TryClaim(ctx, ev)
				week := weekOf(t, ev.Time)
				switch {
				case err != nil:
					t.Error(err)
					return
				case week < before && r.Verdict != engine.TooOld:
					t.Errorf("%v in week %s, the oldest was %s", r.Verdict, week, before)
				case r.Verdict == engine.Claimed:
					if _, twice := taken.LoadOrStore(fmt.Sprint(week, string(ev.ID)), true); twice {
						t.Errorf("%s in %s claimed twice", ev.ID, week)
					}
				}
			}
		})
	}
	for range 2 {
		work.Go(func() {
			for !stop.Load() {
				if _, err := e.Retention().DropExpired(ctx); err != nil {
					t.Error(err)
					return
				}
				if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 {
					t.Errorf("%+v %v", r, err)
					return
				}
			}
		})
	}
	for w := range weeks {
		time.Sleep(25 * time.Millisecond)
		now.Store(int64(w + 1))
		c.set(weeksLater(w + 1))
	}
	stop.Store(true)
	work.Wait()
	if _, err := e.Retention().DropAllExpired(ctx); err != nil {
		t.Fatal(err)
	}
	wantOldest(t, e, weeks-2)
	r, err := e.Admin().Verify(ctx)
	if err != nil || r.Total != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	e2 := open(t, m.CrashClone(0), engine.Options{Clock: c.now})
	awaitTrust(t, e2)
	verifyClean(t, e2, int(r.Claims))
}

func TestRetentionSkipsWeeksWithoutClaims(t *testing.T) {
	disk := storetest.NewDisk()
	open1 := func(o engine.Options) *engine.Engine {
		m, err := disk.Open("d", storage.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		o.Clock = (&clock{t: noon}).now
		return open(t, m, o)
	}
	e := open1(engine.Options{RetentionWeeks: engine.KeepAll})
	for _, week := range []int{-20, -1} {
		wantVerdict(t, claim(t, e, at("a", weeksLater(week))), engine.Claimed)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open1(engine.Options{RetentionWeeks: 4})
	r, err := e.Retention().DropExpired(ctx)
	if err != nil || r.Buckets != 1 || r.Behind != 14 {
		t.Fatalf("%+v %v", r, err)
	}
	wantOldest(t, e, -18)
	if r, err = e.Retention().DropExpired(ctx); err != nil || r.Behind != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	wantOldest(t, e, -4)
}
