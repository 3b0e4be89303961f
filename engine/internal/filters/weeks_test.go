package filters

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// noon is the week of most claims in these tests.
const noon weekbucket.Week = 3000

// trusted returns an empty set that is trusted.
func trusted(maxBytes, expected uint64) *Set {
	s := New(maxBytes, expected)
	s.trusted.Store(true)
	return s
}

// hashes returns n random hashes, the same for the same seed.
func hashes(seed uint64, n int) []uint64 {
	r, list := rand.New(rand.NewPCG(seed, 0)), make([]uint64, n)
	for i := range list {
		list[i] = r.Uint64()
	}
	return list
}

func addMany(s *Set, week weekbucket.Week, seed uint64, n int) {
	for _, h := range hashes(seed, n) {
		s.Add(week, h)
	}
}

// possible returns how many of n other hashes the filters do not deny.
func possible(s *Set, week weekbucket.Week, seed uint64, n int) (count int) {
	for _, h := range hashes(seed+1000, n) {
		if !s.CertainlyNew(week, h) {
			count++
		}
	}
	return count
}

func wantSize(t *testing.T, s *Set, what string, bytes uint64, saturated, evicted int) {
	t.Helper()
	if got, want := s.Size(), (Size{Bytes: bytes, Saturated: saturated, Evicted: evicted}); got != want {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func TestFiltersOfTheOldestWeeksGiveWayToThoseOfLaterOnes(t *testing.T) {
	const budget = 16 << 10
	for what, weeks := range map[string][]weekbucket.Week{"in order": {0, 1, 2, 3, 4, 5}, "backwards": {5, 4, 3, 2, 1, 0}} {
		s := trusted(budget, 2048)
		for _, w := range weeks {
			addMany(s, noon+w, uint64(w), 1800)
			if b := s.Size().Bytes; b > budget {
				t.Fatalf("%s: %d bytes", what, b)
			}
		}
		wantSize(t, s, what, budget, 0, 2)
		for w := range weekbucket.Week(6) {
			for _, h := range hashes(uint64(w), 1800) {
				if s.CertainlyNew(noon+w, h) {
					t.Fatalf("%s: a claim of week %d is denied", what, w)
				}
			}
			if n := possible(s, noon+w, uint64(w), 200); w < 2 && n != 200 || w >= 2 && n > 20 {
				t.Errorf("%s: %d of 200 new claims of week %d are possible", what, n, w)
			}
		}
	}
}

// A filter that grows evicts those of earlier weeks, never those of later ones.
func TestGrowingFilterEvictsEarlierWeeksOnly(t *testing.T) {
	s := trusted(16<<10, 2048)
	for w := range weekbucket.Week(3) {
		addMany(s, noon+w, uint64(w), 1000)
	}
	addMany(s, noon+1, 5, 2500) // 8 KiB more, 4 are free
	wantSize(t, s, "after 3500 claims", 16<<10, 0, 1)
	if n := possible(s, noon+2, 2, 100); n > 10 {
		t.Errorf("the filter of the last week is gone: %d of 100 are possible", n)
	}
	if n := possible(s, noon, 3, 100); n != 100 {
		t.Errorf("the filter of the first week is not gone: %d of 100 are possible", n)
	}
	addMany(s, noon+1, 6, 10_000)
	if got := s.Size(); got.Evicted != 1 || got.Saturated != 1 || got.Bytes > 16<<10 {
		t.Errorf("after 13500 claims: %+v", got)
	}
}

func TestFirstClaimOfAWeekEvictsNoFilter(t *testing.T) {
	const budget = 256 << 10
	s := trusted(budget, 1<<20)
	addMany(s, noon, 1, 20_000)
	addMany(s, noon+1, 2, 1)
	wantSize(t, s, "with the next week", budget, 0, 0)
	if n := possible(s, noon, 3, 200); n > 10 {
		t.Errorf("%d of 200 new claims are possible", n)
	}
	addMany(s, noon+1, 4, 10_000) // it needs more than was free
	if got := s.Size(); got.Evicted != 1 || got.Bytes > budget {
		t.Errorf("%+v", got)
	}
}

func TestFilterIsSizedFromTheWeekBefore(t *testing.T) {
	const n = 20_000
	s := trusted(1<<30, 100)
	addMany(s, noon, 1, n)
	grown := func(week weekbucket.Week) uint64 {
		before := s.Size().Bytes
		s.Add(week, 1)
		return s.Size().Bytes - before
	}
	if b := grown(noon + 1); b < 2*n*9/10 || b > 2*n*11/10 {
		t.Errorf("after a week of %d claims a filter has %d bytes", n, b)
	}
	if b := grown(noon + 2); b > 4096 {
		t.Errorf("after a week of one claim a filter has %d bytes", b)
	}
	if b := grown(noon - 5); b > 4096 {
		t.Errorf("before all others a filter has %d bytes", b)
	}
}

// A week before all others gets its second layer in the size of the expected number.
func TestWeekBeforeAllOthersGrowsToTheExpectedSize(t *testing.T) {
	const expected = 50_000
	s := trusted(1<<30, expected)
	s.Add(noon, 1)
	base := s.Size().Bytes
	addMany(s, noon-5, 1, 2000)
	if b := s.Size().Bytes - base; b != 4096 {
		t.Fatalf("a week of 2,000 claims has %d bytes", b)
	}
	addMany(s, noon-5, 2, 40_000)
	if b := s.Size().Bytes - base; b < 4096+2*expected || b > 4096+2*expected+64 {
		t.Errorf("a week of 42,000 claims, where 50,000 are expected, has %d bytes", b)
	}
}

// A filter is replaced when it is evicted, and when all are rebuilt.
func TestClaimsAreAddedToTheFilterThatReplacedTheirs(t *testing.T) {
	s := trusted(1<<20, 1000)
	s.Add(noon, 1)
	s.Add(noon, 2)
	s.Replace(noon, bloom.New(bloom.Options{}))
	if !s.Add(noon, 3) || s.CertainlyNew(noon, 3) {
		t.Error("the claim is not in the new filter")
	}
}

func TestDroppedWeeksMakeRoom(t *testing.T) {
	s := trusted(16<<10, 2048)
	addMany(s, noon, 1, 12_000)
	if got := s.Size(); got.Saturated != 1 {
		t.Fatalf("%+v", got)
	}
	var e Entry
	b, later := Bucket{1, noon}, Bucket{1, noon + 1}
	s.Put(&e, b, 5)
	s.Put(&e, later, 6)
	s.Put(&e, Bucket{2, noon + 1}, 7)
	s.DropBefore(noon+1, func(b Bucket) weekbucket.Week { return noon + 1 + weekbucket.Week(b.Scope-1) })
	wantSize(t, s, "after the drop", 0, 0, 0)
	if counts := s.Counts(); len(counts) != 1 || counts[later] != (Count{1, 6}) || s.counts.claims != 1 {
		t.Errorf("the counts are %v, %d claims in all", counts, s.counts.claims)
	}
	s.Forget(&e, later)
	if n := len(maps.Collect(s.Buckets())); n != 0 || s.counts.claims != 0 {
		t.Errorf("%d buckets, %d claims in all", n, s.counts.claims)
	}
}

// Weeks with claims only in open transactions, or only in the store, are among those before.
func TestWeeksBeforeHasReservedAndStoredWeeks(t *testing.T) {
	s := New(1<<20, 1000)
	s.Add(noon-20, 1)
	s.NoteStored(map[weekbucket.Week]struct{}{noon - 30: {}, noon - 20: {}})
	version := s.Version()
	s.Reserve(noon - 25)
	if s.Reserve(noon - 20); s.Version() != version+1 {
		t.Error("a week with a filter is a new one")
	}
	near := []weekbucket.Week{noon - 8, noon - 7, noon - 6, noon - 5, noon - 4, noon - 3, noon - 2, noon - 1}
	for _, c := range []struct {
		what string
		want []weekbucket.Week
	}{
		{"while they are rebuilt", []weekbucket.Week{noon - 30, noon - 25, noon - 20}},
		{"without transactions", []weekbucket.Week{noon - 30, noon - 20}},
		{"when they are trusted", []weekbucket.Week{noon - 20}},
	} {
		switch c.what {
		case "without transactions":
			s.ReleaseAll()
		case "when they are trusted":
			s.trusted.Store(true)
		}
		if got := s.WeeksBefore(noon); !slices.Equal(got, append(c.want, near...)) {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
