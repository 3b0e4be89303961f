package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// claimMany claims n random ids, the same for the same seed, in the given number of weeks after
// that of noon.
func claimMany(t testing.TB, e *engine.Engine, weeks int, seed uint64, n int, want engine.Verdict) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	when := weeksLater(weeks)
	for n > 0 {
		events := make([]engine.Event, min(n, 8000))
		for i := range events {
			events[i] = at(fmt.Sprintf("%016x", r.Uint64()), when)
		}
		mustExpect(t, e, events, want)
		n -= len(events)
	}
}

func TestFalsePositivesStayBelowOnePercentAlsoFarBeyondTheExpectedLoad(t *testing.T) {
	const expected = 5000
	e, _, _ := openAt(t, engine.Options{ExpectedPerWeek: expected, RecentClaims: -1})
	claimMany(t, e, 0, 0, expected, engine.Claimed)
	for load, n := range []int{1: 0, 2: expected, 4: 2 * expected} {
		if load == 0 || load == 3 {
			continue
		}
		claimMany(t, e, 0, uint64(load), n, engine.Claimed)
		before := stats(t, e)
		// additions by the probes only increase the rate
		claimMany(t, e, 0, uint64(100+load), 5000, engine.Claimed)
		s := stats(t, e)
		wrong := s.FilterFalsePositives - before.FilterFalsePositives
		if rate := float64(wrong) / 5000; rate > 0.01 {
			t.Errorf("at %d times the expected load, %.4f of new events read the store", load, rate)
		}
		if wrong+s.FilterNegatives-before.FilterNegatives != 5000 {
			t.Errorf("%d false positives and %d negatives of 5000", wrong, s.FilterNegatives-before.FilterNegatives)
		}
	}
}

func TestCappedFilterStillAnswersCorrectly(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{MaxFilterBytes: 1024, RecentClaims: -1})
	wantVerdict(t, claim(t, e, at("one", weeksLater(-1))), engine.Claimed)
	if s := stats(t, e); s.FiltersSaturated != 0 {
		t.Errorf("%d filters are saturated by one claim", s.FiltersSaturated)
	}
	claimMany(t, e, 0, 1, 5000, engine.Claimed)
	claimMany(t, e, 0, 1, 5000, engine.Duplicate)
	claimMany(t, e, 0, 2, 5000, engine.Claimed)
	if s := stats(t, e); s.FilterBytes > 2*1024 || s.FilterFalsePositives < 1000 || s.FiltersSaturated != 1 {
		t.Fatalf("%d bytes, %d false positives, %d saturated: the cap was not reached", s.FilterBytes, s.FilterFalsePositives, s.FiltersSaturated)
	}
}

func TestFilterBoundThatIsRaisedLetsFiltersGrow(t *testing.T) {
	e, m, c := openAt(t, engine.Options{MaxFilterBytes: 1024})
	claimMany(t, e, 0, 1, 5000, engine.Claimed)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	e = open(t, m, engine.Options{Clock: c.now, MaxFilterBytes: 1 << 20, ExpectedPerWeek: 1000})
	awaitTrust(t, e)
	claimMany(t, e, 0, 5001, 10000, engine.Claimed)
	if s := stats(t, e); s.FilterBytes <= 1024 || s.FiltersSaturated != 0 || s.FilterFalsePositives > 100 {
		t.Errorf("%d bytes, %d filters saturated, %d false positives of 5000", s.FilterBytes, s.FiltersSaturated, s.FilterFalsePositives)
	}
}

func TestHundredsOfNearlyEmptyWeeksCostLittleMemory(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: engine.KeepAll, ExpectedPerWeek: 1000})
	var events []engine.Event
	for w := range 800 {
		for i := range 3 {
			events = append(events, at(fmt.Sprint(i), weeksLater(-w)))
		}
	}
	mustExpect(t, e, events, engine.Claimed)
	mustExpect(t, e, events, engine.Duplicate)
	if b := stats(t, e).FilterBytes; b > 800*4096 {
		t.Fatalf("filters of 800 weeks have %d bytes", b)
	}
	e = open(t, m.CrashClone(0), engine.Options{ExpectedPerWeek: 1000, Clock: c.now})
	if b := stats(t, e).FilterBytes; b > 800*4096 {
		t.Fatalf("after a crash filters of 800 weeks have %d bytes", b)
	}
	verifyClean(t, e, len(events))
}
