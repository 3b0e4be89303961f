package engine_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// reopen opens the state after a clean close, or after a power failure.
func reopen(t testing.TB, m *storetest.Mem, o engine.Options) (*engine.Engine, *storetest.Mem) {
	t.Helper()
	m, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	return open(t, m, o), m
}

func mustClose(t testing.TB, e *engine.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// askStore returns how many of n new events of a week read the store.
func askStore(t testing.TB, e *engine.Engine, week int, seed uint64, n int) uint64 {
	t.Helper()
	before := stats(t, e).FilterFalsePositives
	claimMany(t, e, week, seed, n, engine.Claimed)
	return stats(t, e).FilterFalsePositives - before
}

// If the budget becomes less than the filter of the latest week, that is made again, smaller.
func TestFilterOfTheLatestWeekFitsALoweredBudget(t *testing.T) {
	o := engine.Options{MaxFilterBytes: 64 << 10, ExpectedPerWeek: 30_000}
	e, m, c := openAt(t, o)
	claimMany(t, e, 0, 1, 20_000, engine.Claimed)
	for _, source := range []string{engine.FromScan, engine.FromSnapshot} {
		mustClose(t, e)
		o.Clock, o.MaxFilterBytes = c.now, 32<<10
		e, m = reopen(t, m, o)
		awaitTrust(t, e)
		if s := stats(t, e); s.FilterSource != source || s.FiltersEvicted != 0 || s.FilterBytes == 0 || s.FilterBytes > 32<<10 {
			t.Errorf("filters from %s, %d evicted, %d bytes; want from %s", s.FilterSource, s.FiltersEvicted, s.FilterBytes, source)
		}
	}
	claimMany(t, e, 0, 1, 20_000, engine.Duplicate)
}

func TestDroppedWeeksMakeRoomForAFullFilter(t *testing.T) {
	e, _, c := openAt(t, engine.Options{MaxFilterBytes: 16 << 10, RetentionWeeks: 1, ExpectedPerWeek: 2048, AllowedSkew: 7 * 24 * time.Hour})
	claimMany(t, e, -1, 1, 1900, engine.Claimed)
	claimMany(t, e, 1, 2, 1900, engine.Claimed)
	claimMany(t, e, 0, 3, 12_000, engine.Claimed) // that of the week before is evicted
	if s := stats(t, e); s.FiltersSaturated != 1 || s.FiltersEvicted != 1 {
		t.Fatalf("%+v", s)
	}
	c.set(weeksLater(1))
	if r, err := e.Retention().DropAllExpired(ctx); err != nil || r.Weeks != 1 {
		t.Fatal(r, err)
	}
	if s := stats(t, e); s.FiltersSaturated != 1 || s.FiltersEvicted != 0 {
		t.Fatalf("an evicted filter stays when its week is dropped: %+v", s)
	}
	c.set(weeksLater(2))
	if r, err := e.Retention().DropAllExpired(ctx); err != nil || r.Weeks != 1 {
		t.Fatal(r, err)
	}
	claimMany(t, e, 1, 4, 5000, engine.Claimed)
	if s := stats(t, e); s.FiltersSaturated != 0 || s.FilterBytes != 16<<10 {
		t.Fatalf("with the room of the week that was dropped: %+v", s)
	}
}

func TestEvictedFiltersStayEvictedUntilTheBudgetIsRaised(t *testing.T) {
	e, m, c := openAt(t, engine.Options{MaxFilterBytes: 8 << 10, RetentionWeeks: 10, ExpectedPerWeek: 2048}.WithSnapshotEvery(1000))
	for w := -4; w <= 0; w++ {
		before := slices.Max(sl(e.Snapshots()))
		claimMany(t, e, w, uint64(10+w), 1500, engine.Claimed)
		if w < -1 { // the journal is trimmed, so that it does not replace a scan
			eventually(t, "a snapshot", func() bool { return slices.Max(sl(e.Snapshots())) > before && !e.SnapshotRunning() })
		}
	}
	o := engine.Options{Clock: c.now, RetentionWeeks: 10, ExpectedPerWeek: 2048, RecentClaims: -1}
	claims := 5 * 1500
	check := func(budget uint64, source string, evicted int) {
		t.Helper()
		for w := -4; w <= 0; w++ {
			claimMany(t, e, w, uint64(10+w), 1500, engine.Duplicate)
		}
		awaitTrust(t, e)
		if s := stats(t, e); s.FilterSource != source || s.FiltersEvicted != evicted || s.FilterBytes > budget {
			t.Fatalf("filters from %s, %d evicted, %d bytes of %d", s.FilterSource, s.FiltersEvicted, s.FilterBytes, budget)
		}
		verifyClean(t, e, claims)
	}
	check(8<<10, engine.FromJournal, 3)
	for _, step := range []struct {
		budget  uint64
		source  string
		evicted int
	}{
		{8 << 10, engine.FromSnapshot, 3},
		{8 << 10, engine.FromSnapshot, 3}, // nothing was written since, and the rebuild is not repeated
		{4 << 10, engine.FromSnapshot, 4}, // lowered
		{4 << 10, engine.FromSnapshot, 4},
		{12 << 10, engine.FromScan, 2}, // raised: rebuilt, as far as there is space
		{12 << 10, engine.FromSnapshot, 2},
		{64 << 10, engine.FromScan, 0},
		{64 << 10, engine.FromSnapshot, 0},
		{65 << 10, engine.FromSnapshot, 0}, // no filter needs it
	} {
		mustClose(t, e)
		o.MaxFilterBytes = step.budget
		e, m = reopen(t, m, o)
		check(step.budget, step.source, step.evicted)
		if step.source == engine.FromSnapshot {
			e2 := open(t, m.CrashClone(0), o)
			if s := stats(t, e2); s.FilterSource != engine.FromSnapshot || s.FiltersEvicted != step.evicted {
				t.Fatalf("after a crash filters from %s, %d evicted", s.FilterSource, s.FiltersEvicted)
			}
		}
	}
	if n := askStore(t, e, -4, 99, 200); n > 10 {
		t.Errorf("after a rebuild %d of 200 new events ask the store", n)
	}
}

// Random claims in random weeks, with a budget that changes with every other open.
func TestFiltersStayWithinTheBudgetAndNoClaimIsDenied(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		c := &clock{t: noon}
		o := engine.Options{RetentionWeeks: 10, ExpectedPerWeek: 100, Clock: c.now, RecentClaims: -1, MaxFilterBytes: 8 << 10}.WithSnapshotEvery(2000)
		m := storetest.NewMem(storage.Identity{})
		e := open(t, m, o)
		known := map[string]bool{}
		evicted := 0
		for range 25 {
			var fresh, old []engine.Event
			now := map[string]bool{}
			week := -r.IntN(8)
			for range 1 + r.IntN(1000) {
				ev := at(fmt.Sprint(r.IntN(3000)), weeksLater(week))
				id := fmt.Sprint(week, " ", string(ev.ID))
				if known[id] {
					old = append(old, ev)
				} else if !now[id] {
					fresh = append(fresh, ev)
				}
				now[id] = true
			}
			mustExpect(t, e, old[:len(old)/2], engine.Duplicate)
			mustExpect(t, e, fresh, engine.Claimed)
			mustExpect(t, e, append(old, fresh...), engine.Duplicate)
			maps.Copy(known, now)
			s := stats(t, e)
			if s.FilterBytes > max(o.MaxFilterBytes, 64) {
				t.Fatalf("seed %d: %d bytes of %d", seed, s.FilterBytes, o.MaxFilterBytes)
			}
			evicted += s.FiltersEvicted
			switch r.IntN(5) {
			case 0:
				mustClose(t, e)
				e, m = reopen(t, m, o)
			case 1:
				crashed := m.CrashClone(0)
				o.MaxFilterBytes = []uint64{1, 1000, 4096, 10_000, 20_000, 1 << 20}[r.IntN(6)]
				mustClose(t, e)
				m = crashed
				e = open(t, m, o)
			}
		}
		awaitTrust(t, e)
		verifyClean(t, e, len(known))
		if evicted == 0 {
			t.Errorf("seed %d: no filter was evicted", seed)
		}
		mustClose(t, e)
	}
}

// Power failures at every step of batches, snapshots and evictions: nothing acknowledged is denied
// afterwards, nor by the filters alone.
func TestCrashAtAnyMomentAroundAnEvictionLosesNothing(t *testing.T) {
	o := engine.Options{ExpectedPerWeek: 64, RetentionWeeks: 10, MaxFilterBytes: 9 << 10, Clock: (&clock{t: noon}).now}.WithSnapshotEvery(60)
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, o)
	crashes := recordCrashes(m, func(storetest.Op, int) bool { return true })
	for i := range 24 {
		var events []engine.Event
		for j := range 40 {
			events = append(events, at(fmt.Sprint(i, "-", j), weeksLater(-7+(i+j%2)%8)))
		}
		mustExpect(t, e, events, engine.Claimed)
		if i%4 == 3 {
			eventually(t, "the snapshots", func() bool { return !e.SnapshotRunning() })
		}
		crashes.acknowledged(events)
	}
	if n := stats(t, e).FiltersEvicted; n < 3 || m.Calls(storetest.OpTrimJournal) < 2 {
		t.Fatalf("%d filters were evicted: this is not the history that was wanted", n)
	}
	mustClose(t, e)
	for _, c := range crashes.all {
		e := open(t, c.m, o)
		s := stats(t, e)
		if s.FilterSource == engine.FromScan || s.FilterRebuilding || s.FilterBytes > 9<<10 {
			t.Fatalf("crash at %s: filters from %s, %d bytes", c.at, s.FilterSource, s.FilterBytes)
		}
		if err := expect(e, c.known, engine.Duplicate); err != nil {
			t.Fatalf("crash at %s: %v", c.at, err)
		}
		if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 || int(r.Claims) < len(c.known) {
			t.Fatalf("crash at %s: %+v %v", c.at, r, err)
		}
		mustClose(t, e)
	}
}
