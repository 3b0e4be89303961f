package filters

import (
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A Rebuild fills filters and counts from a scan of the claims, as of the start of the scan. The
// committer adds later claims: counts are added up, and a filter may contain a claim twice.
type Rebuild struct {
	snapshots *Snapshots
	filters   *Set
	counts    map[Bucket]Count
}

// Rebuild returns a new rebuild. There must be only one at a time.
func (s *Snapshots) Rebuild() *Rebuild {
	return &Rebuild{s, s.filters, make(map[Bucket]Count)}
}

// Begin removes everything. It must be called at the start of the scan, while the committer waits.
func (r *Rebuild) Begin() { r.filters.reset() }

// Add adds a scanned claim.
func (r *Rebuild) Add(b Bucket, hash uint64) {
	r.filters.weeks.of(b.Week).Add(hash)
	r.filters.rebuilt.Add(1)
	n := r.counts[b]
	n.Add(hash)
	r.counts[b] = n
}

// Finish drops the weeks that are not retained (see Set.DropBefore) and makes the filters trusted.
// Only the committer calls it. The next batch starts a snapshot.
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

// Damaged records that the scan met damage. The filters remain untrusted, so that every event reads
// the store, which rejects only events whose claims may be damaged.
func (r *Rebuild) Damaged(damage *storage.DamageError) { r.filters.damage.Store(damage) }

// ForgetDamage forgets the damage that a rebuild has met, because it may be gone. If it returns
// true, there was some, and the filters must be rebuilt.
func (s *Snapshots) ForgetDamage() bool { return s.filters.damage.Swap(nil) != nil }
