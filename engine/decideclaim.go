package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A decider decides requests, one after the other. Only the committer uses it; the state that it
// shares with other goroutines is locked or durable.
type decider struct {
	retained *retained
	core     *core
	finder   *finder
	reserved *occ.Reservations
	history  *occ.History
	sums     *sums
	holds    *holds
	outbox   *outbox

	seq       uint64      // last batch handed to the applier
	put       putClaims   // writes that the store may not show yet
	committed time.Time   // latest commit time
	takenOver []takenOver // claims taken over by the request that is being decided
	noted     []occ.Write // writes of the transaction that is being decided
	old       ClaimRecord // used by existing, so that a new claim costs no copy of a record
}

// isReserved reports whether an open transaction holds the key of a claim.
func (d *decider) isReserved(key []byte) bool {
	return d.reserved.Some() && d.reserved.Get(d.core.lockName(key)).IsHeld()
}

// decideNew returns the record of the claim in this group or before it, nil if there is none, and
// adds the claim to the filter. Only here an event is found to be new. The record is valid until the
// next call.
func (d *decider) decideNew(key []byte, c *candidate) (*ClaimRecord, error) {
	if c.certain && d.put.has(c.asOf) { // only d.put can contain the claim
		record, _ := d.put.find(key, c.place.hash)
		if record == nil {
			d.finder.filters.AddNew(c.place.week, c.place.hash)
			d.core.counters.filterNegatives.Add(1)
			return nil, nil
		}
		return d.existing(d.parsePut(record))
	}
	if d.finder.filters.Add(c.place.week, c.place.hash) {
		d.core.counters.filterNegatives.Add(1)
		return nil, nil
	}
	old, err := d.existing(d.findSince(key, c))
	if err == nil && old == nil && d.finder.filters.Trusted() {
		d.core.counters.falsePositives.Add(1)
	}
	return old, err
}

// existing returns the record of a claim that was found, nil if none was. It is valid until the next
// call.
func (d *decider) existing(rec ClaimRecord, found bool, err error) (*ClaimRecord, error) {
	if err != nil || !found {
		return nil, err
	}
	d.old = rec
	return &d.old, nil
}

// find looks for the claim in this group and before it, without reading the filter.
func (d *decider) find(key []byte, hash uint64) (ClaimRecord, bool, error) {
	if record, put := d.put.find(key, hash); put {
		return d.parsePut(record)
	}
	return d.finder.read(key)
}

// findSince is find for a candidate for which no claim may have been found when it was prepared:
// the store is not read again if all later decisions are in memory.
func (d *decider) findSince(key []byte, c *candidate) (ClaimRecord, bool, error) {
	if record, put := d.put.find(key, c.place.hash); put {
		return d.parsePut(record)
	}
	if c.absent && d.put.has(c.asOf) {
		return ClaimRecord{}, false, nil
	}
	return d.finder.read(key)
}

// parsePut parses a record that was put; nil stands for a removed claim. No name in the record was
// freed since.
func (d *decider) parsePut(record []byte) (rec ClaimRecord, found bool, err error) {
	if record == nil {
		return ClaimRecord{}, false, nil
	}
	if rec, err = d.finder.parse(record); err != nil {
		return ClaimRecord{}, false, d.core.stop(err)
	}
	return rec, true, nil
}

// claim adds a claim with the given record to the group. If its scope or topic would exceed the
// limit of names, it adds nothing and returns an error.
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
		return nil // it was counted when it was first made
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

// decideNear returns the record of the claim in an adjacent week, in this group or before it, that
// the candidate does not replace. If there is none, held reports whether an open transaction holds
// its key there, or a caller that has left its claim. Claims there with an expired lease are added
// to takenOver.
func (d *decider) decideNear(r *claimSet, c *candidate) (taken *ClaimRecord, held bool, err error) {
	for i := c.nearAt; i < c.nearEnd; i++ {
		p := &r.near[i]
		if p.week < d.retained.decidedOldest(c.scope) {
			continue
		}
		key := r.key(p)
		if !d.finder.filters.CertainlyNew(p.week, p.hash) {
			rec, found, err := d.find(key, p.hash)
			if err != nil {
				return nil, false, err
			}
			if found && !c.takes(&rec) && !d.core.left.isOpen(key) {
				return &rec, false, nil
			}
			held = held || d.core.left.isOpen(key)
			if found && rec.State == Leased {
				d.takenOver = append(d.takenOver, takenOver{p, c.scope, rec})
			}
		}
		held = held || d.isReserved(key)
	}
	return nil, held, nil
}

// A takenOver is a claim whose lease has expired and which a claim in another week replaces.
type takenOver struct {
	place *place
	scope string
	rec   ClaimRecord
}

// endTakenOver releases the claims that were taken over from other weeks, so that their leases are
// lost. Their records are replaced, so they remain counted.
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

// checkTakenOver returns ErrLeaseLost if a transaction takes over a claim from another week and
// also changes that claim with its old lease.
func (d *decider) checkTakenOver(r *claimSet) error {
	if len(d.takenOver) == 0 {
		return nil
	}
	taken := make(map[string]bool, len(d.takenOver)) // a map, since both may have limits.TxClaims elements
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

// holdsLease reports whether the lease of c holds the current claim.
func (d *decider) holdsLease(c *candidate, now *ClaimRecord, found bool) bool {
	return found && c.place.week >= d.retained.decidedOldest(c.scope) && now.State == Leased && now.Owner == c.change.lease.owner
}

// checkUnclaims returns ErrConflict if a claim that a transaction withdraws was changed since the
// transaction read it.
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
			return ErrConflict // on the next run, Unclaim finds that the claim was dropped
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

// unclaim adds the withdrawal of a claim to the group. The claim's bits remain in the filter.
func (d *decider) unclaim(g *group, u *txUnclaim) error {
	scope, topic, err := d.refs(g, u.scope, u.rec.Origin.Topic, u.week)
	if err != nil {
		return err
	}
	g.after = d.core.left.decide(u.key, u.hash, d.finder.cache, g.after)
	var w storage.ClaimWrite
	if u.rec.Generation > 0 { // a generation is never used again
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
