package filters

import (
	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A View has the filters as of one time, for many look-ups in one goroutine.
type View struct {
	filters map[weekbucket.Week]*bloom.Filter
	trusted bool
	week    weekbucket.Week
	filter  *bloom.Filter // filter of week
}

// View returns the current view. It reads trusted first: a rebuild completes the filters before it
// sets trusted, so a trusted view is complete.
func (s *Set) View() View {
	v := View{trusted: s.trusted.Load()}
	v.filters = *s.weeks.filters.Load()
	v.filter = v.filters[v.week]
	return v
}

// Trusted reports whether the filters contain every claim.
func (v *View) Trusted() bool { return v.trusted }

// CertainlyNew is Set.CertainlyNew as of the time of the view.
func (v *View) CertainlyNew(week weekbucket.Week, hash uint64) bool {
	if v.week != week {
		v.week, v.filter = week, v.filters[week]
	}
	return v.trusted && (v.filter == nil || !v.filter.MayContain(hash))
}

// Prefetch loads the parts of the filters for look-ups of n claims, and for Add, into the
// processor's cache, so that the cache misses overlap.
func (s *Set) Prefetch(n int, at func(i int) (weekbucket.Week, uint64)) {
	s.prefetch(false, n, at)
}

// PrefetchNew is Prefetch for AddNew.
func (s *Set) PrefetchNew(n int, at func(i int) (weekbucket.Week, uint64)) {
	s.prefetch(true, n, at)
}

// prefetch is Prefetch, or PrefetchNew.
func (s *Set) prefetch(asNew bool, n int, at func(i int) (weekbucket.Week, uint64)) {
	filters := *s.weeks.filters.Load()
	var hashes [64]uint64 // hashes of one week
	var week weekbucket.Week
	run := 0
	for i := range n {
		w, hash := at(i)
		if run == len(hashes) || w != week {
			prefetchRun(asNew, filters[week], hashes[:run])
			week, run = w, 0
		}
		hashes[run] = hash
		run++
	}
	prefetchRun(asNew, filters[week], hashes[:run])
}

func prefetchRun(asNew bool, f *bloom.Filter, hashes []uint64) {
	switch {
	case f == nil || len(hashes) == 0:
	case asNew:
		f.PrefetchNew(hashes)
	default:
		f.Prefetch(hashes)
	}
}
