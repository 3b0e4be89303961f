package filters

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Options.MaxFilterBytes bounds all filters together. If there is no space for a new filter, or for
// one to grow, filters of earlier weeks are evicted, oldest first. A filter that contains every
// hash replaces an evicted one, so that all events of its week read the store. It remains until the
// week is dropped, also in snapshots, because rebuilding the filter would need a scan of the
// claims.
const (
	filterBytesPerClaim = 2       // with the default bits per key of package bloom
	filterBlockClaims   = 32      // claims in a block of 64 bytes
	fewClaims           = 1 << 11 // a nearly empty week costs 4 KiB
	fewBytes            = filterBytesPerClaim * fewClaims
)

// weeks has the filter of each week. Any goroutine may read the filters.
type weeks struct {
	filters  atomic.Pointer[map[weekbucket.Week]*bloom.Filter] // replaced, never modified
	making   sync.Mutex                                        // held while filters are replaced or grow; not held during I/O
	sizes    map[weekbucket.Week]uint64                        // known numbers of claims before a rebuild
	budget   uint64                                            // maximum size of all filters together
	expected uint64                                            // estimate of a week's claims without a better one
	version  atomic.Uint64                                     // increases after each additional week that Set.WeeksBefore may return
}

// A grower decides how far a filter may grow (see bloom.Options.Grow).
type grower = func(f *bloom.Filter, want, least uint64, add func(bytes uint64))

// wholeBlocks rounds maxBytes down to whole blocks of filters, at least one.
func wholeBlocks(maxBytes uint64) uint64 {
	const block = filterBlockClaims * filterBytesPerClaim
	return max(maxBytes/block, 1) * block
}

// of returns the filter of the week, and makes it if there is none.
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

// claimsOf returns the number of claims for which a week's filter is made: the known number, or
// that of the nearest earlier week. If neither is known, the filter starts small, see growerOf.
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

// filterBytes returns the size of a filter for a number of claims, at most the budget.
func (s *weeks) filterBytes(claims uint64) uint64 {
	if claims >= s.budget/filterBytesPerClaim {
		return s.budget
	}
	return (claims + filterBlockClaims - 1) / filterBlockClaims * filterBlockClaims * filterBytesPerClaim
}

// growerOf returns the grower of a week's filter. A filter that started small grows to the size for
// Options.ExpectedPerWeek first, so that a week with many claims has two layers instead of seven.
func (s *weeks) growerOf(week weekbucket.Week) grower {
	return func(f *bloom.Filter, want, least uint64, add func(bytes uint64)) {
		s.making.Lock()
		defer s.making.Unlock()
		if (*s.filters.Load())[week] != f {
			return // the filter was evicted or forgotten
		}
		if f.Bytes() <= fewBytes {
			want = max(want, s.filterBytes(s.expected))
		}
		if granted := s.room(week, want, least, s.growthBudget()); granted > 0 {
			add(granted)
		}
	}
}

// growthBudget returns the budget for the growth of filters. About a 64th of the budget, in whole
// small filters, is reserved for new weeks: the first event of the next week may come before the
// current week ends, and must not evict a filter that is in use.
func (s *weeks) growthBudget() uint64 {
	return s.budget - s.budget/64/fewBytes*fewBytes
}

// free returns how many bytes, from least to want, a new filter may use without evictions, or 0.
func (s *weeks) free(want, least uint64) uint64 {
	used, _, _ := s.size()
	if used+least > s.budget {
		return 0
	}
	return min(want, s.budget-used)
}

// room returns how many more bytes, from least to want, the filter of a week may use within the
// budget, or 0. It evicts only as many filters of earlier weeks as necessary, and none if that
// would not suffice. The caller holds making.
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

// evict evicts filters of weeks before the given one, oldest first, until used is within the
// budget. It returns their size.
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

// evicted returns the replacement of an evicted filter with the given number of claims. In a
// snapshot, its MaxBytes records the budget under which the filter was evicted (see outgrown).
func (s *weeks) evicted(claims uint64) *bloom.Filter {
	f := bloom.All(claims)
	f.SetMaxBytes(s.budget)
	return f
}

// adopt sets the filters to those of a snapshot. If they exceed the budget, which was larger at the
// time of the snapshot, the oldest are evicted.
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

// replace replaces the map of filters with a changed copy. The caller holds making.
func (s *weeks) replace(change func(filters map[weekbucket.Week]*bloom.Filter)) {
	filters := maps.Clone(*s.filters.Load())
	change(filters)
	s.filters.Store(&filters)
}

// heldBytes returns the part of the budget that a filter uses: 0 for an evicted one.
func heldBytes(f *bloom.Filter) uint64 {
	if f.ContainsAll() {
		return 0
	}
	return f.Bytes()
}

// size returns the memory of the filters, the number of filters that are full and cannot grow, and
// the number of evicted ones.
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
