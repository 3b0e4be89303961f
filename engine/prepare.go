package engine

import (
	"slices"
	"time"
)

// prepare judges all events that do not need the committer (invalid ones, ones that are too new or
// too old, duplicates in the cache or the store) and adds the others to the request. It runs in the
// caller's goroutine, so that callers look up in parallel. Its answers depend on reads: before they
// are returned, the caller must call settleContext or wait for the committer. It keeps no reference
// to events.
//
// It computes the keys and hashes of all events first, then reads the filters for all of them, so
// that the cache misses overlap.
func (f *finder) prepare(r *ownClaims, events []Event, results []Result) error {
	r.departed = f.core.left.changes.Load()
	now := f.core.now()
	first := now.Truncate(time.Millisecond)
	r.set.claims = slices.Grow(r.set.claims, len(events))
	for i := range events {
		n := len(r.set.claims)
		r.set.claims = r.set.claims[:n+1]
		c, ev, res := &r.set.claims[n], &events[i], &results[i]
		if !f.newCandidate(&r.set, c, ev, res, now) {
			r.set.claims = r.set.claims[:n]
			continue
		}
		if ev.countsNear() {
			f.addNear(&r.set, c, ev)
		}
		c.result = res
		res.Record.begin(ev, now, first)
		if ev.Lease > 0 {
			res.Lease = newLease(ev, &res.Record, now)
		}
	}
	r.open = len(r.set.claims)
	f.filters.Prefetch(len(r.set.claims), r.set.hash)
	asOf := f.core.applied.at.Load()
	r.asOf = asOf
	view := f.filters.View()
	for i := range r.set.claims {
		c := &r.set.claims[i]
		c.certain = r.set.certainlyNew(&view, c)
		c.absent, c.asOf = c.certain, asOf
	}
	err := f.lookUpAll(&r.set)
	for i := range r.set.claims {
		if r.set.claims[i].answered {
			r.open--
		}
	}
	return err
}
