package filters

import (
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A Set has the filters and the counts. Only the committer of the engine changes it; any goroutine
// may read the filters. The zero value is not usable, see New.
type Set struct {
	weeks  weeks
	counts counts
	recent struct { // used by the committer only: the filter of the last claim's week, valid while the map is the same
		filters *map[weekbucket.Week]*bloom.Filter
		week    weekbucket.Week
		filter  *bloom.Filter
	}

	// trusted means that the filters contain every claim. If it is false, no claim is certainly
	// new, and counts are incomplete.
	trusted atomic.Bool
	// damage is the damage that ended the rebuild, so that trusted remains false, or nil
	damage atomic.Pointer[storage.DamageError]
	// stored has further weeks with claims besides those with a filter, while trusted is false
	stored atomic.Pointer[weekSet] // replaced, never modified
	// reserved has the weeks without a filter in which open transactions have claimed
	reserved atomic.Pointer[weekSet] // replaced, never modified

	rebuilt atomic.Uint64 // claims that a rebuild has read
}

type weekSet = map[weekbucket.Week]struct{}

// New returns an empty set. All filters together have at most maxBytes. A week without a better
// estimate gets a filter for the expected number of claims.
func New(maxBytes, expected uint64) *Set {
	s := &Set{counts: counts{buckets: make(map[Bucket]*Count)}}
	s.weeks.budget, s.weeks.expected = wholeBlocks(maxBytes), expected
	s.weeks.filters.Store(&map[weekbucket.Week]*bloom.Filter{})
	s.weeks.version.Store(1)
	s.stored.Store(&weekSet{})
	s.reserved.Store(&weekSet{})
	return s
}

// Trusted reports whether the filters contain every claim, and the counts are complete. Otherwise
// they are being rebuilt.
func (s *Set) Trusted() bool { return s.trusted.Load() }

// Damage returns the damage that ended the rebuild, nil if none did.
func (s *Set) Damage() *storage.DamageError { return s.damage.Load() }

// A Size is the size of a set.
type Size struct {
	Bytes              uint64 // memory of the filters
	Saturated, Evicted int    // weeks whose filter is full and cannot grow; weeks whose filter was evicted
	Rebuilt            uint64 // claims that a rebuild has read
}

// Size returns the current size.
func (s *Set) Size() Size {
	bytes, saturated, evicted := s.weeks.size()
	return Size{bytes, saturated, evicted, s.rebuilt.Load()}
}

// CertainlyNew reports whether certainly no claim with this hash was ever put. It does no I/O.
func (s *Set) CertainlyNew(week weekbucket.Week, hash uint64) bool {
	if !s.trusted.Load() {
		return false
	}
	f := (*s.weeks.filters.Load())[week]
	return f == nil || !f.MayContain(hash)
}

// WeeksBefore returns the last nearWeeks before a given week, in which a first claim may be made
// just now, and earlier weeks with claims, farWeeks in all.
const (
	nearWeeks = 8
	farWeeks  = weekbucket.Week(limits.ArrivalWindow/(7*24*time.Hour)) + 1 // the first week is covered only in part
)

// WeeksBefore returns, in order, the weeks before the given one that may have claims. The result
// does not depend on whether the filters are complete.
func (s *Set) WeeksBefore(week weekbucket.Week) (before []weekbucket.Week) {
	near := max(week, nearWeeks) - nearWeeks
	trusted := s.trusted.Load()
	reserved := *s.reserved.Load()     // read before filters: a reserved week gets a filter when its claim commits
	filters := *s.weeks.filters.Load() // read before stored, see reset
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

// Version increases with each additional week that WeeksBefore may return. It must be read before
// WeeksBefore is called.
func (s *Set) Version() uint64 { return s.weeks.version.Load() }

// Reserve records that an open transaction is about to claim in a week. Only one goroutine at a
// time may call Reserve or ReleaseAll.
func (s *Set) Reserve(week weekbucket.Week) {
	reserved := *s.reserved.Load()
	if _, known := reserved[week]; known || (*s.weeks.filters.Load())[week] != nil {
		return
	}
	reserved = maps.Clone(reserved)
	reserved[week] = struct{}{}
	s.reserved.Store(&reserved)
	s.weeks.version.Add(1)
}

// ReleaseAll records that open transactions have no claims left.
func (s *Set) ReleaseAll() {
	if len(*s.reserved.Load()) > 0 {
		s.reserved.Store(&weekSet{})
	}
}

// Add sets the bits of a claim that will be put, and reports whether it is certainly new. The bits
// are set before the batch is applied, so that no look-up misses the claim.
func (s *Set) Add(week weekbucket.Week, hash uint64) (certainlyNew bool) {
	return s.recentFilter(week).Add(hash) && s.trusted.Load()
}

// AddNew is Add for a claim that is known to be new.
func (s *Set) AddNew(week weekbucket.Week, hash uint64) {
	s.recentFilter(week).AddNew(hash)
}

// recentFilter is weeks.of for the committer.
func (s *Set) recentFilter(week weekbucket.Week) *bloom.Filter {
	filters, r := s.weeks.filters.Load(), &s.recent
	if r.filters != filters || r.week != week {
		f := (*filters)[week]
		if f == nil {
			return s.weeks.of(week)
		}
		r.filters, r.week, r.filter = filters, week, f
	}
	return r.filter
}

// Put adds a claim that the batch puts to the counts and to the batch's journal entry.
func (s *Set) Put(e *Entry, b Bucket, hash uint64) {
	e.add(b, signPut, hash)
	s.counts.merge(b, Count{1, hash})
}

// Remove subtracts a claim that the batch removes from the counts, and adds the removal to the
// batch's journal entry.
func (s *Set) Remove(e *Entry, b Bucket, hash uint64) {
	e.add(b, signRemoved, hash)
	s.counts.merge(b, Count{^uint64(0), hash})
}

// Forget removes the count of a bucket that is dropped while its week is retained, and adds the
// drop to the batch's journal entry.
func (s *Set) Forget(e *Entry, b Bucket) {
	e.add(b, signDropped, 0)
	s.counts.forget(b)
}

// DropBefore removes all weeks before oldest, and the counts of buckets in weeks that their scopes
// do not retain; of returns the oldest week of a bucket's scope. In a retained week, the bits of
// these buckets remain in the filter.
func (s *Set) DropBefore(oldest weekbucket.Week, of func(Bucket) weekbucket.Week) {
	s.weeks.dropBefore(oldest)
	s.counts.dropBefore(of)
}

// Counts returns a copy of the counts. Only the committer calls it.
func (s *Set) Counts() map[Bucket]Count { return s.counts.copy() }

// Buckets returns the buckets with claims and their numbers of claims. During a rebuild, it returns
// the buckets that have gained claims since the scan began. Only the committer calls it.
func (s *Set) Buckets() iter.Seq2[Bucket, uint64] {
	return func(yield func(Bucket, uint64) bool) {
		for b, c := range s.counts.buckets {
			if int64(c.Claims) > 0 && !yield(b, c.Claims) {
				return
			}
		}
	}
}

// NoteStored sets the weeks with claims, for use until the filters are rebuilt.
func (s *Set) NoteStored(weeks map[weekbucket.Week]struct{}) { s.stored.Store(&weeks) }

// Replace replaces the filter of a week, or removes it if f is nil. It is for tests.
func (s *Set) Replace(week weekbucket.Week, f *bloom.Filter) {
	s.weeks.making.Lock()
	defer s.weeks.making.Unlock()
	s.weeks.replace(func(filters map[weekbucket.Week]*bloom.Filter) {
		if filters[week] = f; f == nil {
			delete(filters, week)
		}
	})
}

// reset removes everything. It is used while the filters are not trusted.
func (s *Set) reset() {
	s.weeks.making.Lock()
	defer s.weeks.making.Unlock()
	weeks := maps.Clone(*s.stored.Load())
	for w := range *s.weeks.filters.Load() {
		weeks[w] = struct{}{}
	}
	s.stored.Store(&weeks)
	s.weeks.filters.Store(&map[weekbucket.Week]*bloom.Filter{})
	s.counts.reset()
}
