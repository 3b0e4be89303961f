package filters

import (
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A Rebuild fills filters and counts from a scan of the claims at its start. The committer adds later
// claims; counts add up, and a filter may contain a claim twice.
type Rebuild struct {
	snapshots *Snapshots
	filters   *Set
	counts    map[Bucket]Count
}

// Rebuild returns a rebuild. There is one at a time.
func (s *Snapshots) Rebuild() *Rebuild {
	return &Rebuild{s, s.filters, make(map[Bucket]Count)}
}

// Begin removes everything, while the committer is stopped at the begin of the scan.
func (r *Rebuild) Begin() { r.filters.reset() }

// Add adds a claim of the scan.
func (r *Rebuild) Add(b Bucket, hash uint64) {
	r.filters.weeks.of(b.Week).Add(hash)
	r.filters.rebuilt.Add(1)
	n := r.counts[b]
	n.Add(hash)
	r.counts[b] = n
}

// Finish makes the filters trusted, without the weeks that are not retained (see Set.DropBefore). The
// committer calls it; the next batch makes a snapshot.
func (r *Rebuild) Finish(oldest weekbucket.Week, of func(Bucket) weekbucket.Week) {
	f := r.filters
	for b, c := range r.counts {
		f.counts.merge(b, c)
	}
	f.DropBefore(oldest, of)
	f.weeks.sizes = nil
	f.trusted.Store(true)
	r.snapshots.since = max(f.counts.claims, r.snapshots.opt.Every)
}

// Damaged notes that the scan met damage: the filters remain untrusted, so that every event reads the
// store, which tells those apart that may be in the damage.
func (r *Rebuild) Damaged(damage *storage.DamageError) { r.filters.damage.Store(damage) }

// ForgetDamage forgets the damage that a rebuild has met, which may be gone. It reports whether there
// was some: the filters are to be rebuilt then.
func (s *Snapshots) ForgetDamage() bool { return s.filters.damage.Swap(nil) != nil }
