package engine

import (
	"maps"
	"runtime"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// WithSnapshotEvery makes the engine write a snapshot each n claims.
func (o Options) WithSnapshotEvery(n uint64) Options {
	o.snapshotEvery = n
	return o
}

// ForgetFilter makes the filter of a week forget all, and LoseFilter the engine that there is one, as it never happens:
// claims that exist are denied from then on.
func (e *Engine) ForgetFilter(w weekbucket.Week) { e.setFilter(w, bloom.New(bloom.Options{})) }

func (e *Engine) LoseFilter(w weekbucket.Week) { e.setFilter(w, nil) }

func (e *Engine) setFilter(w weekbucket.Week, f *bloom.Filter) {
	e.screen.making.Lock()
	defer e.screen.making.Unlock()
	filters := maps.Clone(*e.screen.filters.Load())
	if filters[w] = f; f == nil {
		delete(filters, w)
	}
	e.screen.filters.Store(&filters)
}

// AwaitTaken waits until what others are about to hand over has most likely arrived, and the committer has taken all
// that arrived.
func (e *Engine) AwaitTaken() {
	for range 1000 {
		runtime.Gosched()
	}
	for len(e.requests) > 0 {
		runtime.Gosched()
	}
}

// Snapshots returns up to which batch each of the two snapshots on disk knows the claims, 0 for none.
func (e *Engine) Snapshots() [2]uint64 {
	e.snaps.mu.Lock()
	defer e.snaps.mu.Unlock()
	return e.snaps.seqs
}
