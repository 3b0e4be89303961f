package engine

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// filters has the data about claims that needs no store: a filter for each week and the counts of
// each bucket. Only the committer changes it; any goroutine may read the filters.
type filters struct {
	filters atomic.Pointer[map[weekbucket.Week]*bloom.Filter] // replaced, never changed
	making  sync.Mutex                                        // held to replace filters and to let them grow; no I/O under it
	sizes   map[weekbucket.Week]uint64                        // claims that weeks are known to have before a rebuild
	counts  map[bucketRef]*count                              // the committer's
	last    *count                                            // of lastRef, in counts; nil if it must be looked up
	lastRef bucketRef
	recent  struct { // the committer's: the filter of the last claim's week, if filters are still these
		filters *map[weekbucket.Week]*bloom.Filter
		week    weekbucket.Week
		filter  *bloom.Filter
	}
	claims   uint64 // used by the committer: the sum of all counts
	budget   uint64 // bytes of all filters together
	expected uint64 // claims of a week without a better estimate

	// trusted says that the filters contain every claim. If it is false, they cannot report
	// "certainly new", and counts are incomplete.
	trusted atomic.Bool
	// damage ended the rebuild, so that trusted remains false; nil if it did not
	damage atomic.Pointer[storage.DamageError]
	// stored has the weeks with claims, in addition to those with a filter, while trusted is false
	stored atomic.Pointer[weekSet] // replaced, never changed
	// reserved has the weeks in which open transactions have claimed and which had no filter then
	reserved atomic.Pointer[weekSet] // replaced, never changed
	// weeksVersion increases after each week that weeksBefore may return in addition
	weeksVersion atomic.Uint64

	negatives atomic.Uint64 // claims that the filter alone found new
	// claims that the filter considered possible and that the store did not have
	falsePositives atomic.Uint64
	rebuilt        atomic.Uint64 // claims that a rebuild has read
}

type weekSet = map[weekbucket.Week]struct{}

// A count is the number of claims in a bucket and the XOR of their hashes. During a rebuild it is the
// change since the scan began, and claims has wrapped around if more were removed than put.
type count struct {
	claims uint64
	xor    uint64
}

// some reports whether there are claims, or during a rebuild more than when the scan began.
func (c *count) some() bool { return int64(c.claims) > 0 }

func newScreen(o Options) *filters {
	s := &filters{counts: make(map[bucketRef]*count), budget: filterBudget(o.MaxFilterBytes), expected: o.ExpectedPerWeek}
	s.filters.Store(&map[weekbucket.Week]*bloom.Filter{})
	s.stored.Store(&weekSet{})
	s.reserved.Store(&weekSet{})
	s.weeksVersion.Store(1)
	return s
}

// incomplete returns why counts are incomplete, nil if they are complete.
func (s *filters) incomplete() error {
	damage := s.damage.Load()
	switch {
	case s.trusted.Load():
		return nil
	case damage != nil:
		return fmt.Errorf("%w, when the damage is gone: %w", ErrRebuilding, damage)
	}
	return ErrRebuilding
}

// certainlyNew reports that no claim with this hash was ever put, without I/O.
func (s *filters) certainlyNew(week weekbucket.Week, hash uint64) bool {
	if !s.trusted.Load() {
		return false
	}
	f := (*s.filters.Load())[week]
	return f == nil || !f.MayContain(hash)
}

// A filterView is the filters at one time, for many look-ups one after the other.
type filterView struct {
	filters map[weekbucket.Week]*bloom.Filter
	trusted bool
	week    weekbucket.Week
	filter  *bloom.Filter // of week
}

// view reads trusted first: a rebuild makes the filters complete before it sets trusted, so that a
// trusted view is complete.
func (s *filters) view() filterView {
	v := filterView{trusted: s.trusted.Load()}
	v.filters = *s.filters.Load()
	v.filter = v.filters[v.week]
	return v
}

// certainlyNew is filters.certainlyNew at the time of the view.
func (v *filterView) certainlyNew(p *place) bool {
	if v.week != p.week {
		v.week, v.filter = p.week, v.filters[p.week]
	}
	return v.trusted && (v.filter == nil || !v.filter.MayContain(p.hash))
}

// Of the weeks before a given one, weeksBefore returns the last nearWeeks, in which a first claim may
// be made just now, and before these the ones with claims, farWeeks in all.
const (
	nearWeeks = 8
	farWeeks  = weekbucket.Week(limits.ArrivalWindow/weekDuration) + 1 // the first one in part
)

// weeksBefore returns weeks before the given one that may have claims, in order. They are the same
// whether the filters are complete or not.
func (s *filters) weeksBefore(week weekbucket.Week) (before []weekbucket.Week) {
	near := max(week, nearWeeks) - nearWeeks
	trusted := s.trusted.Load()
	reserved := *s.reserved.Load() // before filters: a week with a reserved claim gets one when that commits
	filters := *s.filters.Load()   // before stored, see reset
	for w := range filters {
		if w < near {
			before = append(before, w)
		}
	}
	for w := range reserved {
		if w < near && filters[w] == nil {
			before = append(before, w)
		}
	}
	if !trusted {
		for w := range *s.stored.Load() {
			if _, known := reserved[w]; w < near && filters[w] == nil && !known {
				before = append(before, w)
			}
		}
	}
	slices.Sort(before)
	before = before[max(0, len(before)-int(farWeeks-nearWeeks)):]
	for w := near; w < week; w++ {
		before = append(before, w)
	}
	return before
}

// prefetch makes the filters ready for look-ups of n places, and for add: their cache misses
// overlap.
func (s *filters) prefetch(n int, at func(i int) *place) {
	s.prefetchWith(false, n, at)
}

// prefetchNew is prefetch for addNew.
func (s *filters) prefetchNew(n int, at func(i int) *place) {
	s.prefetchWith(true, n, at)
}

func (s *filters) prefetchWith(asNew bool, n int, at func(i int) *place) {
	filters := *s.filters.Load()
	var hashes [64]uint64
	for i := 0; i < n; {
		week, run := at(i).week, 0
		for ; i < n && run < len(hashes) && at(i).week == week; i++ {
			hashes[run] = at(i).hash
			run++
		}
		switch f := filters[week]; {
		case f == nil:
		case asNew:
			f.PrefetchNew(hashes[:run])
		default:
			f.Prefetch(hashes[:run])
		}
	}
}

// add sets the bits for a claim that is about to be put, and reports whether it is certainly new.
// The bits are set before the batch is applied, so that a later look-up does not miss it.
func (s *filters) add(week weekbucket.Week, hash uint64) (certainlyNew bool) {
	return s.recentFilter(week).Add(hash) && s.trusted.Load()
}

// addNew is add for a claim that is known to be new.
func (s *filters) addNew(week weekbucket.Week, hash uint64) {
	s.recentFilter(week).AddNew(hash)
}

// recentFilter is filter for the committer.
func (s *filters) recentFilter(week weekbucket.Week) *bloom.Filter {
	filters, r := s.filters.Load(), &s.recent
	if r.filters != filters || r.week != week {
		f := (*filters)[week]
		if f == nil {
			return s.filter(week)
		}
		r.filters, r.week, r.filter = filters, week, f
	}
	return r.filter
}

// put and remove keep the counts of claims that are in the batch.
func (s *filters) put(ref bucketRef, hash uint64) { s.merge(ref, count{1, hash}) }

func (s *filters) remove(ref bucketRef, hash uint64) { s.merge(ref, count{^uint64(0), hash}) }

// merge adds to the count of a bucket; the number of claims wraps around, so that adding 2^64-1
// subtracts one.
func (s *filters) merge(ref bucketRef, by count) {
	c := s.last
	if c == nil || s.lastRef != ref {
		if c = s.counts[ref]; c == nil {
			c = new(count)
			s.counts[ref] = c
		}
		s.last, s.lastRef = c, ref
	}
	c.claims += by.claims
	c.xor ^= by.xor
	s.claims += by.claims
}

// dropBefore removes all weeks before oldest, and the counts of buckets in weeks that their scope
// does not retain. The bits of those buckets remain in the filter of a retained week.
func (s *filters) dropBefore(oldest weekbucket.Week, of func(bucketRef) weekbucket.Week) {
	s.making.Lock()
	defer s.making.Unlock()
	filters := maps.Clone(*s.filters.Load())
	maps.DeleteFunc(filters, func(w weekbucket.Week, _ *bloom.Filter) bool { return w < oldest })
	s.filters.Store(&filters)
	s.last = nil
	maps.DeleteFunc(s.counts, func(ref bucketRef, c *count) bool {
		if ref.week >= of(ref) {
			return false
		}
		s.claims -= c.claims
		return true
	})
}

// forget removes the count of a bucket.
func (s *filters) forget(ref bucketRef) {
	if c := s.counts[ref]; c != nil {
		s.claims -= c.claims
		s.last = nil
		delete(s.counts, ref)
	}
}

// copyCounts returns the current counts.
func (s *filters) copyCounts() map[bucketRef]count {
	counts := make(map[bucketRef]count, len(s.counts))
	for ref, c := range s.counts {
		if *c != (count{}) {
			counts[ref] = *c
		}
	}
	return counts
}

// reset removes everything. It is used while the filters are not trusted.
func (s *filters) reset() {
	s.making.Lock()
	defer s.making.Unlock()
	weeks := maps.Clone(*s.stored.Load())
	for w := range *s.filters.Load() {
		weeks[w] = struct{}{}
	}
	s.stored.Store(&weeks)
	s.filters.Store(&map[weekbucket.Week]*bloom.Filter{})
	clear(s.counts)
	s.claims, s.last = 0, nil
}

// The source of the filters when the engine was opened (Stats.FilterSource).
const (
	fromSnapshot = "snapshot+journal"
	fromJournal  = "journal"
	fromScan     = "scan"
)
