package engine

import (
	"slices"
	"time"
)

// prepare decides all events that need no committer (malformed events, events too new, duplicates
// in the cache or the store) and puts the others into the request. It runs in the caller's
// goroutine, so that callers look up in parallel. Its answers depend on reads: the caller settles
// before they are returned, or waits for the committer. It keeps no reference to events.
//
// Keys and hashes of all events come first, then the filters are read for all of them, so that
// their cache misses overlap.
func (f *finder) prepare(r *ownClaims, events []Event, results []Result) error {
	r.departed = f.left.changes.Load()
	now := f.now()
	first := now.Truncate(time.Millisecond)
	r.claims = slices.Grow(r.claims, len(events))
	for i := range events {
		n := len(r.claims)
		r.claims = r.claims[:n+1]
		c, ev, res := &r.claims[n], &events[i], &results[i]
		if !f.newCandidate(&r.claimSet, c, ev, res, now) {
			r.claims = r.claims[:n]
			continue
		}
		if ev.countsNear() {
			f.addNear(&r.claimSet, c, ev)
		}
		c.result = res
		res.Record.begin(ev, now, first)
		if ev.Lease > 0 {
			res.Lease = newLease(ev, &res.Record, now)
		}
	}
	r.open = len(r.claims)
	f.screen.prefetch(len(r.claims), r.place)
	asOf := f.applied.at.Load()
	r.asOf = asOf
	filters := f.screen.view()
	for i := range r.claims {
		c := &r.claims[i]
		c.certain = r.certainlyNew(&filters, c)
		c.absent, c.asOf = c.certain, asOf
	}
	err := f.lookUpAll(&r.claimSet)
	for i := range r.claims {
		if r.claims[i].answered {
			r.open--
		}
	}
	return err
}
