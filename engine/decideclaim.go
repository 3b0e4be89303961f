package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A decider decides requests, one after the other. It belongs to the committer; the state that it
// shares with others has a lock, or is durable.
type decider struct {
	retained *retained
	core     *core
	finder   *finder
	reserved *occ.Reservations
	history  *occ.History
	sums     *sums
	holds    *holds
	outbox   *outbox

	seq       uint64      // of the last batch handed to the applier
	put       putClaims   // writes that the store may not show yet
	committed time.Time   // the latest time that PutCommitTime gave a batch
	takenOver []takenOver // by the claims of the request that is being decided
	noted     []occ.Write // of the transaction that is being decided
}

// isReserved reports whether an open transaction holds the key of a claim.
func (d *decider) isReserved(key []byte) bool {
	return d.reserved.Some() && d.reserved.Get(d.core.lockName(key)).IsHeld()
}

// decideNew reports whether the claim exists, in this group or before it, and marks it in the
// filter. This is the only place where an event is found to be new.
func (d *decider) decideNew(key []byte, c *candidate) (ClaimRecord, bool, error) {
	if c.certain && d.put.has(c.asOf) { // a claim on it can only be in d.put
		record, put := d.put.find(key, c.place.hash)
		rec, found, err := d.parsePut(record)
		if !put || err == nil && !found {
			d.finder.filters.AddNew(c.place.week, c.place.hash)
			d.core.counters.filterNegatives.Add(1)
		}
		return rec, found, err
	}
	if d.finder.filters.Add(c.place.week, c.place.hash) {
		d.core.counters.filterNegatives.Add(1)
		return ClaimRecord{}, false, nil
	}
	rec, found, err := d.findSince(key, c)
	if err == nil && !found && d.finder.filters.Trusted() {
		d.core.counters.falsePositives.Add(1)
	}
	return rec, found, err
}

// find returns the claim that exists in this group or before it, without reading the filter.
func (d *decider) find(key []byte, hash uint64) (ClaimRecord, bool, error) {
	if record, put := d.put.find(key, hash); put {
		return d.parsePut(record)
	}
	return d.finder.read(key)
}

// findSince is find for a candidate that may have had no claim when it was prepared: the store is
// not read again if all later decisions are in memory.
func (d *decider) findSince(key []byte, c *candidate) (ClaimRecord, bool, error) {
	if record, put := d.put.find(key, c.place.hash); put {
		return d.parsePut(record)
	}
	if c.absent && d.put.has(c.asOf) {
		return ClaimRecord{}, false, nil
	}
	return d.finder.read(key)
}

// parsePut parses a record that was put, nil for a claim that was removed. No name in it was freed
// since.
func (d *decider) parsePut(record []byte) (rec ClaimRecord, found bool, err error) {
	if record == nil {
		return ClaimRecord{}, false, nil
	}
	if rec, err = d.finder.parse(record); err != nil {
		return ClaimRecord{}, false, d.core.stop(err)
	}
	return rec, true, nil
}

// claim puts a claim with the given record, or the record of its next generation, into the group.
// It fails, with nothing added, if scope or topic would exceed the limit of names.
func (d *decider) claim(g *group, key []byte, c *candidate, rec *ClaimRecord) error {
	scope, topic, err := d.refs(g, c.scope, rec.Origin.Topic, c.place.week)
	if err != nil {
		return err
	}
	g.after = d.core.left.decide(key, c.place.hash, d.finder.cache, g.after)
	w := d.put.put(key, c.place.hash, rec, topic)
	g.batch.Claims = append(g.batch.Claims, w)
	g.claims++
	g.bytes += len(w.Key) + len(w.Record)
	if c.again {
		return nil // it was counted, and its hash recorded, when it was made
	}
	ref := filters.Bucket{Scope: scope, Week: c.place.week}
	d.finder.filters.Put(&g.journal, ref, c.place.hash)
	return nil
}

// refs returns the numbers of a scope and a topic for a claim in a week.
func (d *decider) refs(g *group, scope, topic string, week weekbucket.Week) (s, t uint64, err error) {
	s, t, g.batch.State, err = d.finder.names.ClaimRefs(scope, topic, week, g.batch.State)
	return s, t, err
}

// decideNear reports whether the claim exists in an adjacent week, in this group or before it; if
// not, whether an open transaction holds its key there. Claims there with an expired lease are added
// to takenOver.
func (d *decider) decideNear(r *claimSet, c *candidate) (rec ClaimRecord, found, held bool, err error) {
	for i := c.nearAt; i < c.nearEnd; i++ {
		p := &r.near[i]
		if p.week < d.retained.decidedOldest(c.scope) {
			continue
		}
		key := r.key(p)
		if !d.finder.filters.CertainlyNew(p.week, p.hash) {
			if rec, found, err = d.find(key, p.hash); err != nil || found && !c.takes(&rec) && !d.core.left.isOpen(key) {
				return rec, found, false, err
			}
			held = held || d.core.left.isOpen(key)
			if found && rec.State == Leased {
				d.takenOver = append(d.takenOver, takenOver{p, c.scope, rec})
			}
		}
		held = held || d.isReserved(key)
	}
	return ClaimRecord{}, false, held, nil
}

// A takenOver claim is one whose lease has expired, in another week than that of the claim that
// replaces it.
type takenOver struct {
	place *place
	scope string
	rec   ClaimRecord
}

// endTakenOver releases the claims that were taken over from other weeks, so that each of their
// leases is lost. Their records are replaced: they remain counted.
func (d *decider) endTakenOver(g *group, r *claimSet) error {
	for i := range d.takenOver {
		t := &d.takenOver[i]
		_, topic, err := d.refs(g, t.scope, t.rec.Origin.Topic, t.place.week)
		if err != nil {
			return err
		}
		t.rec.end(Released, "")
		t.rec.Fingerprint = ""
		g.after = d.core.left.decide(r.key(t.place), t.place.hash, d.finder.cache, g.after)
		w := d.put.put(r.key(t.place), t.place.hash, &t.rec, topic)
		g.batch.Claims = append(g.batch.Claims, w)
		g.bytes += len(w.Key) + len(w.Record)
	}
	return nil
}

// checkTakenOver returns ErrLeaseLost if a transaction takes a claim over from another week and also
// changes it by the old lease.
func (d *decider) checkTakenOver(r *claimSet) error {
	if len(d.takenOver) == 0 {
		return nil
	}
	taken := make(map[string]bool, len(d.takenOver)) // a transaction may have as many of both as limits.TxClaims
	for _, t := range d.takenOver {
		taken[string(r.key(t.place))] = true
	}
	for i := range r.claims {
		if c := &r.claims[i]; c.change != nil && taken[string(r.key(&c.place))] {
			return ErrLeaseLost
		}
	}
	return nil
}

// holdsLease reports whether the current claim, if there is one, belongs to the lease of c.
func (d *decider) holdsLease(c *candidate, now *ClaimRecord, found bool) bool {
	return found && c.place.week >= d.retained.decidedOldest(c.scope) && now.State == Leased && now.Owner == c.change.lease.owner
}

// checkUnclaims checks that the claims that a transaction withdraws are unchanged since it has read
// them.
func (d *decider) checkUnclaims(g *group, writes *txWrites) error {
	if !writes.unclaims {
		return nil
	}
	for _, i := range writes.latest {
		u := writes.list[i].unclaim
		if u == nil {
			continue
		}
		if u.week < d.retained.decidedOldest(u.scope) || d.isReserved(u.key) {
			return ErrConflict // run again, Unclaim finds that the claim was dropped
		}
		rec, found, err := d.find(u.key, u.hash)
		if err != nil {
			return err
		}
		if !found || !rec.is(&u.rec) {
			return ErrConflict
		}
		if _, _, err := d.refs(g, u.scope, u.rec.Origin.Topic, u.week); err != nil {
			return err
		}
	}
	return nil
}

// unclaim adds the withdrawal of a claim to the group. Its bits remain in the filter, which may
// contain too many.
func (d *decider) unclaim(g *group, u *txUnclaim) error {
	scope, topic, err := d.refs(g, u.scope, u.rec.Origin.Topic, u.week)
	if err != nil {
		return err
	}
	g.after = d.core.left.decide(u.key, u.hash, d.finder.cache, g.after)
	var w storage.ClaimWrite
	if u.rec.Generation > 0 { // its generations are not used again
		left := u.rec
		left.end(Released, "")
		left.Fingerprint = "" // as for Engine.Release
		w = d.put.put(u.key, u.hash, &left, topic)
	} else {
		ref := filters.Bucket{Scope: scope, Week: u.week}
		d.finder.filters.Remove(&g.journal, ref, u.hash)
		w = d.put.remove(u.key, u.hash)
	}
	g.batch.Claims = append(g.batch.Claims, w)
	g.bytes += len(w.Key) + len(w.Record)
	g.after = append(g.after, func() { d.finder.cache.forget(u.hash) })
	return nil
}
