package filters

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Options.MaxFilterBytes bounds all filters together. If a filter is to be made or to grow and
// there is no space, those of earlier weeks are evicted, the oldest first: a filter that contains
// every hash replaces the evicted one, so that all events of its week read the store. It remains
// until the week is dropped, also in snapshots: rebuilding it would need a scan of the claims.
const (
	filterBytesPerClaim = 2       // with the bits per key that package bloom takes by default
	filterBlockClaims   = 32      // in the 64 bytes of which each filter has a multiple
	fewClaims           = 1 << 11 // hundreds of nearly empty weeks cost 4 KiB each
	fewBytes            = filterBytesPerClaim * fewClaims
)

// weeks has the filter of each week. Any goroutine may read them.
type weeks struct {
	filters  atomic.Pointer[map[weekbucket.Week]*bloom.Filter] // replaced, never changed
	making   sync.Mutex                                        // held to replace filters and to let them grow; no I/O under it
	sizes    map[weekbucket.Week]uint64                        // claims that weeks are known to have before a rebuild
	budget   uint64                                            // bytes of all filters together
	expected uint64                                            // claims of a week without a better estimate
	version  atomic.Uint64                                     // increases after each week that Set.WeeksBefore may return in addition
}

// A grower decides about the growth of a filter (see bloom.Options.Grow).
type grower = func(f *bloom.Filter, want, least uint64, add func(bytes uint64))

// wholeBlocks is a whole number of the blocks of filters, at least one.
func wholeBlocks(maxBytes uint64) uint64 {
	const block = filterBlockClaims * filterBytesPerClaim
	return max(maxBytes/block, 1) * block
}

// of returns the week's filter. If there is none, it makes one.
func (s *weeks) of(week weekbucket.Week) *bloom.Filter {
	if f := (*s.filters.Load())[week]; f != nil {
		return f
	}
	s.making.Lock()
	defer s.making.Unlock()
	if f := (*s.filters.Load())[week]; f != nil {
		return f
	}
	claims := s.claimsOf(week)
	want := min(s.filterBytes(claims), s.growthBudget())
	few := min(want, fewBytes)
	granted := s.free(want, few)
	if granted == 0 {
		granted = s.room(week, few, few, s.budget)
	}
	f := s.evicted(0)
	if granted > 0 {
		f = bloom.New(bloom.Options{Expected: claims, MaxBytes: granted, Grow: s.growerOf(week)})
		f.SetMaxBytes(s.budget)
	}
	s.replace(func(filters map[weekbucket.Week]*bloom.Filter) { filters[week] = f })
	s.version.Add(1)
	return f
}

// claimsOf returns the number of claims for which the filter of a week is made: the known number,
// or that of the nearest earlier week. If none is known, the filter begins small, see grow.
func (s *weeks) claimsOf(week weekbucket.Week) uint64 {
	if n, known := s.sizes[week]; known {
		return max(n+n/4, fewClaims)
	}
	filters := *s.filters.Load()
	if len(filters) == 0 {
		return s.expected
	}
	var latest *bloom.Filter
	var at weekbucket.Week
	for w, f := range filters {
		if w < week && (latest == nil || w > at) {
			latest, at = f, w
		}
	}
	if latest == nil {
		return fewClaims
	}
	return max(latest.Len(), fewClaims)
}

// filterBytes returns the size of a filter for a number of claims, within the budget.
func (s *weeks) filterBytes(claims uint64) uint64 {
	if claims >= s.budget/filterBytesPerClaim {
		return s.budget
	}
	return (claims + filterBlockClaims - 1) / filterBlockClaims * filterBlockClaims * filterBytesPerClaim
}

// growerOf returns the grower of a week's filter. A filter that is small because its week was
// unknown gets the size of Options.ExpectedPerWeek with its first growth, so that a week with many
// claims has two layers and not seven.
func (s *weeks) growerOf(week weekbucket.Week) grower {
	return func(f *bloom.Filter, want, least uint64, add func(bytes uint64)) {
		s.making.Lock()
		defer s.making.Unlock()
		if (*s.filters.Load())[week] != f {
			return // it was evicted or forgotten
		}
		if f.Bytes() <= fewBytes {
			want = max(want, s.filterBytes(s.expected))
		}
		if granted := s.room(week, want, least, s.growthBudget()); granted > 0 {
			add(granted)
		}
	}
}

// growthBudget is the budget that filters may grow to. The rest, whole small filters of about a
// 64th, is for weeks that begin: the first event of the next week may come before the current week
// ends, and evicts no filter that is in use.
func (s *weeks) growthBudget() uint64 {
	return s.budget - s.budget/64/fewBytes*fewBytes
}

// free returns how many bytes, from least to want, a new filter may use without evicting another
// one, or 0.
func (s *weeks) free(want, least uint64) uint64 {
	used, _, _ := s.size()
	if used+least > s.budget {
		return 0
	}
	return min(want, s.budget-used)
}

// room returns how many more bytes, from least to want, the filter of a week may use so that all
// filters stay within budget, or 0. It evicts no more filters of earlier weeks than necessary, and
// none in vain. The caller holds making.
func (s *weeks) room(week weekbucket.Week, want, least, budget uint64) uint64 {
	var used, older uint64
	for w, f := range *s.filters.Load() {
		n := heldBytes(f)
		used += n
		if w < week {
			older += n
		}
	}
	if used-older+least > budget {
		return 0
	}
	used -= s.evict(week, used+least, budget)
	return min(want, budget-used)
}

// evict evicts the filters of weeks before the given one, the oldest first, until used is within
// the budget, and returns their bytes.
func (s *weeks) evict(before weekbucket.Week, used, budget uint64) (freed uint64) {
	if used <= budget {
		return 0
	}
	s.replace(func(filters map[weekbucket.Week]*bloom.Filter) {
		for _, week := range slices.Sorted(maps.Keys(filters)) {
			if week >= before || used-freed <= budget {
				return
			}
			f := filters[week]
			freed += heldBytes(f)
			filters[week] = s.evicted(f.Len())
		}
	})
	return freed
}

// evicted returns the replacement of a filter with the given number of claims. Its MaxBytes says in
// a snapshot under which budget it was evicted (see outgrown).
func (s *weeks) evicted(claims uint64) *bloom.Filter {
	f := bloom.All(claims)
	f.SetMaxBytes(s.budget)
	return f
}

// adopt uses the filters of a snapshot. If they exceed the budget, which was larger when it was
// taken, the oldest are evicted.
func (s *weeks) adopt(filters map[weekbucket.Week]*bloom.Filter) {
	s.making.Lock()
	defer s.making.Unlock()
	for _, f := range filters {
		f.SetMaxBytes(s.budget)
	}
	s.filters.Store(&filters)
	used, _, _ := s.size()
	s.evict(weekbucket.Max+1, used, s.budget)
}

// replace replaces the filters by a changed copy. The caller holds making.
func (s *weeks) replace(change func(filters map[weekbucket.Week]*bloom.Filter)) {
	filters := maps.Clone(*s.filters.Load())
	change(filters)
	s.filters.Store(&filters)
}

// heldBytes returns a filter's part of the budget: 0 for an evicted one.
func heldBytes(f *bloom.Filter) uint64 {
	if f.ContainsAll() {
		return 0
	}
	return f.Bytes()
}

// size returns the memory that the filters occupy, how many of them are full and may not grow, and
// how many were evicted.
func (s *weeks) size() (bytes uint64, saturated, evicted int) {
	for _, f := range *s.filters.Load() {
		bytes += heldBytes(f)
		if f.Saturated() {
			saturated++
		}
		if f.ContainsAll() {
			evicted++
		}
	}
	return bytes, saturated, evicted
}

// dropBefore removes all weeks before oldest.
func (s *weeks) dropBefore(oldest weekbucket.Week) {
	s.making.Lock()
	defer s.making.Unlock()
	s.replace(func(filters map[weekbucket.Week]*bloom.Filter) {
		maps.DeleteFunc(filters, func(w weekbucket.Week, _ *bloom.Filter) bool { return w < oldest })
	})
}
