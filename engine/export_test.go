package engine

import (
	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// WithSnapshotEvery makes the engine write a snapshot each n claims.
func (o Options) WithSnapshotEvery(n uint64) Options {
	o.snapshotEvery = n
	return o
}

// ForgetFilter takes away what the filter of a week knows, as no engine ever does: from then on the filter denies
// claims that exist.
func (e *Engine) ForgetFilter(w weekbucket.Week) {
	e.screen.making.Lock()
	defer e.screen.making.Unlock()
	filters := *e.screen.filters.Load()
	rest := make(map[weekbucket.Week]*bloom.Filter, len(filters))
	for week, f := range filters {
		if week != w {
			rest[week] = f
		}
	}
	e.screen.filters.Store(&rest)
}

// Snapshots returns up to which batch each of the two snapshots on disk knows the claims, 0 for none.
func (e *Engine) Snapshots() [2]uint64 {
	e.snaps.mu.Lock()
	defer e.snaps.mu.Unlock()
	return e.snaps.seqs
}
