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
	recent struct { // the committer's: the filter of the last claim's week, if filters are still these
		filters *map[weekbucket.Week]*bloom.Filter
		week    weekbucket.Week
		filter  *bloom.Filter
	}

	// trusted says that the filters contain every claim. If it is false, they cannot report
	// "certainly new", and counts are incomplete.
	trusted atomic.Bool
	// damage ended the rebuild, so that trusted remains false; nil if it did not
	damage atomic.Pointer[storage.DamageError]
	// stored has the weeks with claims, in addition to those with a filter, while trusted is false
	stored atomic.Pointer[weekSet] // replaced, never changed
	// reserved has the weeks in which open transactions have claimed and which had no filter then
	reserved atomic.Pointer[weekSet] // replaced, never changed

	rebuilt atomic.Uint64 // claims that a rebuild has read
}

type weekSet = map[weekbucket.Week]struct{}

// New returns an empty set. All filters together have at most maxBytes; a week without a better
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
	Bytes              uint64 // the memory of the filters
	Saturated, Evicted int    // weeks whose filter is full and may not grow, and weeks whose filter was evicted
	Rebuilt            uint64 // claims that a rebuild has read
}

// Size returns the current size.
func (s *Set) Size() Size {
	bytes, saturated, evicted := s.weeks.size()
	return Size{bytes, saturated, evicted, s.rebuilt.Load()}
}

// CertainlyNew reports that no claim with this hash was ever put, without I/O.
func (s *Set) CertainlyNew(week weekbucket.Week, hash uint64) bool {
	if !s.trusted.Load() {
		return false
	}
	f := (*s.weeks.filters.Load())[week]
	return f == nil || !f.MayContain(hash)
}

// Of the weeks before a given one, WeeksBefore returns the last nearWeeks, in which a first claim may
// be made just now, and before these the ones with claims, farWeeks in all.
const (
	nearWeeks = 8
	farWeeks  = weekbucket.Week(limits.ArrivalWindow/(7*24*time.Hour)) + 1 // the first one in part
)

// WeeksBefore returns weeks before the given one that may have claims, in order. They are the same
// whether the filters are complete or not.
func (s *Set) WeeksBefore(week weekbucket.Week) (before []weekbucket.Week) {
	near := max(week, nearWeeks) - nearWeeks
	trusted := s.trusted.Load()
	reserved := *s.reserved.Load()     // before filters: a week with a reserved claim gets one when that commits
	filters := *s.weeks.filters.Load() // before stored, see reset
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

// Version increases with each week that WeeksBefore may return in addition. It must be read before
// the weeks.
func (s *Set) Version() uint64 { return s.weeks.version.Load() }

// Reserve notes that an open transaction is about to claim in a week. One goroutine at a time may
// call it.
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

// ReleaseAll notes that no open transaction has claimed any more. It is called like Reserve.
func (s *Set) ReleaseAll() {
	if len(*s.reserved.Load()) > 0 {
		s.reserved.Store(&weekSet{})
	}
}

// Add sets the bits for a claim that is about to be put, and reports whether it is certainly new.
// The bits are set before the batch is applied, so that a later look-up does not miss it.
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

// Put adds a claim that is in the batch to the counts, and to the batch's entry of the journal.
func (s *Set) Put(e *Entry, b Bucket, hash uint64) {
	e.add(b, signPut, hash)
	s.counts.merge(b, Count{1, hash})
}

// Remove removes a claim that the batch removes from the counts, and notes it in the batch's entry.
func (s *Set) Remove(e *Entry, b Bucket, hash uint64) {
	e.add(b, signRemoved, hash)
	s.counts.merge(b, Count{^uint64(0), hash})
}

// Forget removes the count of a bucket that is dropped while its week is retained, and notes it in the
// batch's entry.
func (s *Set) Forget(e *Entry, b Bucket) {
	e.add(b, signDropped, 0)
	s.counts.forget(b)
}

// DropBefore removes all weeks before oldest, and the counts of buckets in weeks that their scope
// does not retain: of returns the scope's oldest week. The bits of those buckets remain in the filter
// of a retained week.
func (s *Set) DropBefore(oldest weekbucket.Week, of func(Bucket) weekbucket.Week) {
	s.weeks.dropBefore(oldest)
	s.counts.dropBefore(of)
}

// Counts returns a copy of the counts. Only the committer calls it.
func (s *Set) Counts() map[Bucket]Count { return s.counts.copy() }

// Buckets returns the buckets with claims and the numbers of these; during a rebuild, those with more
// claims than when the scan began. Only the committer calls it.
func (s *Set) Buckets() iter.Seq2[Bucket, uint64] {
	return func(yield func(Bucket, uint64) bool) {
		for b, c := range s.counts.buckets {
			if int64(c.Claims) > 0 && !yield(b, c.Claims) {
				return
			}
		}
	}
}

// NoteStored notes the weeks with claims for the time until the filters are rebuilt.
func (s *Set) NoteStored(weeks map[weekbucket.Week]struct{}) { s.stored.Store(&weeks) }

// Replace replaces the filter of a week by another one, or removes it if that is nil: claims are then
// denied. Only tests do that.
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
