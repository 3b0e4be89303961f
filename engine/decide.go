package engine

import (
	"cmp"
	"errors"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/occ"
)

// The committer decides every request here, one after the other: at-most-once claims, transactions,
// and commands.

// decide decides a request, sets its error, and adds its effects to the group. It reports whether
// the caller must wait until the group is durable, which is false only after a conflict.
func (d *decider) decide(g *group, r request) (wait bool) {
	switch r := r.(type) {
	case *ownClaims:
		r.ticket.err = d.admitOwn(g, r)
	case *txRequest:
		if r.ticket.err = d.admitTx(g, r); errors.Is(r.ticket.err, ErrConflict) {
			r.lostTo = d.pending(g)
			r.lostBy = cmp.Or(r.lostBy, r.lostTo)
			return false
		}
	case *command:
		r.ticket.err = r.run(g)
	}
	return true
}

func (d *decider) admitOwn(g *group, r *ownClaims) error {
	if r.withdrawn {
		return d.admitWithdrawn(g, r)
	}
	if d.put.has(r.asOf) {
		d.finder.filters.PrefetchNew(len(r.set.claims), r.set.hash)
	} else {
		d.finder.filters.Prefetch(len(r.set.claims), r.set.hash)
	}
	d.put.prefetch(r.set.claims)
	for i := range r.set.claims {
		c := &r.set.claims[i]
		var err error
		switch {
		case c.answered:
		case c.change != nil:
			err = d.admitChange(g, &r.set, c)
		case c.place.week < d.retained.decidedOldest(c.scope):
			*c.result = Result{Verdict: TooOld}
		default:
			err = d.admitClaim(g, &r.set, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// admitClaim decides an at-most-once claim.
func (d *decider) admitClaim(g *group, r *claimSet, c *candidate) (err error) {
	key := r.key(&c.place)
	d.takenOver = d.takenOver[:0]
	var old, taken *ClaimRecord // the claim's record, and one that the candidate does not replace
	held := d.isReserved(key)
	if !held {
		if old, err = d.decideNew(key, c); old != nil && !c.takes(old) && !d.core.left.isOpen(key) {
			taken = old
		}
	}
	if err == nil {
		err = d.finder.renewNear(r, c)
	}
	// a claim in another week takes precedence over a reservation
	if err == nil && taken == nil && c.nearEnd > c.nearAt {
		inFlight := held
		taken, held, err = d.decideNear(r, c)
		held = held || inFlight
	}
	res := c.result
	switch {
	case isConfined(err):
		*res = Result{Verdict: Failed, Err: err}
		return nil
	case err != nil:
		return err
	case taken != nil:
		*res = c.answer(taken)
		return nil
	case held:
		*res = Result{Verdict: InFlight}
		return nil
	}
	if c.again = old != nil; c.again {
		res.Record.Generation = old.Generation + 1
	}
	if err := d.claim(g, key, c, &res.Record); err != nil {
		*res = Result{Verdict: Failed, Err: err}
		return nil //nolint:nilerr // the caller of the claim gets it as the error of its result
	}
	if err := d.endTakenOver(g, r); err != nil {
		return d.core.stop(err) // impossible: its names are already known
	}
	if old != nil && old.State == DeadLettered {
		d.history.Add(d.seq+1, occ.Write{Key: claimRead(key)})
	}
	res.Verdict = Claimed
	return nil
}

// admitWithdrawn withdraws the claims of a request whose caller has left, except those that were
// replaced or removed since.
func (d *decider) admitWithdrawn(g *group, r *ownClaims) error {
	for i := range r.set.claims {
		c := &r.set.claims[i]
		key := r.set.key(&c.place)
		if !c.claimed() || !d.core.left.isOpen(key) {
			continue
		}
		if c.place.week < d.retained.decidedOldest(c.scope) {
			g.after = d.core.left.decide(key, c.place.hash, d.finder.cache, g.after) // the claim was dropped
			continue
		}
		u := &txUnclaim{scope: c.scope, week: c.place.week, key: key, hash: c.place.hash, rec: c.result.Record}
		if err := d.unclaim(g, u); err != nil {
			return d.core.stop(err) // impossible: its names are already known
		}
	}
	return nil
}

// admitChange decides a change by the holder of a lease outside a transaction.
func (d *decider) admitChange(g *group, r *claimSet, c *candidate) error {
	key := r.key(&c.place)
	rec, found, err := d.find(key, c.place.hash)
	if isConfined(err) {
		c.change.err = err
		return nil
	}
	if err != nil {
		return err
	}
	if !d.holdsLease(c, &rec, found) {
		c.change.err = ErrLeaseLost
		return nil
	}
	c.change.apply(&rec, c.seen)
	c.change.err = d.claim(g, key, c, &rec)
	return nil
}

// admitTx decides a transaction: it adds all of it to the group, or nothing.
func (d *decider) admitTx(g *group, r *txRequest) error {
	lost, met := d.history.Overtaken(&r.reads)
	if lost > 0 {
		r.lostBy = lost
		return conflictOver(d.history.OvertakenKey(&r.reads))
	}
	if err := d.holds.admit(&r.writes); err != nil {
		return err
	}
	d.finder.filters.Prefetch(len(r.claims.set.claims), r.claims.set.hash)
	d.put.now.prefetch(r.claims.set.claims)
	d.takenOver = d.takenOver[:0]
	for i := range r.claims.set.claims {
		c := &r.claims.set.claims[i]
		if c.place.week < d.retained.decidedOldest(c.scope) {
			return ErrWeekDropped
		}
		rec := &r.claims.records[i]
		now, err := d.decideNew(r.claims.set.key(&c.place), c)
		if err != nil {
			return err
		}
		if err := d.validate(&r.claims.set, c, rec, now); err != nil {
			return err
		}
		if _, _, err := d.refs(g, c.scope, rec.Origin.Topic, c.place.week); err != nil {
			return err
		}
	}
	if err := d.checkTakenOver(&r.claims.set); err != nil {
		return err
	}
	if err := d.checkUnclaims(g, &r.writes); err != nil {
		return err
	}
	if err := d.resolveSums(g, &r.writes); err != nil {
		return err
	}
	if err := d.endTakenOver(g, &r.claims.set); err != nil {
		return d.core.stop(err) // impossible: its names are already known
	}
	for i := range r.claims.set.claims {
		c := &r.claims.set.claims[i]
		if err := d.claim(g, r.claims.set.key(&c.place), c, &r.claims.records[i]); err != nil {
			return d.core.stop(err) // impossible: its names are already known
		}
	}
	if err := d.admitWrites(g, &r.writes); err != nil {
		return d.core.stop(err) // impossible, for the same reason
	}
	d.writeSums(g, &r.writes)
	d.noteInHistory(r)
	r.claimant.Win(d.seq + 1)
	r.member.Committed(d.seq+1, met)
	return nil
}

// noteInHistory records the writes of a transaction and the claims that it reopens.
func (d *decider) noteInHistory(r *txRequest) {
	for _, i := range r.writes.latest {
		if w := &r.writes.list[i]; w.name[0] != stateProduced { // no transaction reads these keys
			d.noted = append(d.noted, w.forHistory())
		}
	}
	for i := range r.claims.set.claims {
		if c := &r.claims.set.claims[i]; c.again {
			d.noted = append(d.noted, occ.Write{Key: claimRead(r.claims.set.key(&c.place))})
		}
	}
	d.history.Add(d.seq+1, d.noted...)
	clear(d.noted)
	d.noted = d.noted[:0]
}

// admitWrites adds the writes of a transaction to the group, and sets the final keys of its outbox
// entries.
func (d *decider) admitWrites(g *group, writes *txWrites) error {
	produced := false
	for i := range writes.list {
		write := &writes.list[i]
		if write.isSum || !writes.isLatest(i) {
			continue
		}
		if write.atCommit {
			write.StateWrite.Value = EncodeInt64(d.commitTime().UnixMicro())
		}
		w := write.StateWrite
		if u := write.unclaim; u != nil {
			if err := d.unclaim(g, u); err != nil {
				return err
			}
			continue
		}
		if w.Key[0] == stateProduced {
			w.Key, produced = d.outbox.admit(w.Key), true
		}
		g.batch.State = append(g.batch.State, w)
		g.bytes += len(w.Key) + len(w.Value)
		d.holds.noteWrite(w)
	}
	if produced {
		g.batch.State = append(g.batch.State, d.outbox.count())
		g.produced = true
	}
	return nil
}

// validate returns an error if a claim of a transaction cannot commit. now is the claim's current
// record, nil if there is none.
func (d *decider) validate(r *claimSet, c *candidate, rec, now *ClaimRecord) error {
	found := now != nil
	next := found && now.Generation == rec.Generation-1
	free := next && c.takes(now)
	switch {
	case c.change != nil && !d.holdsLease(c, now, found):
		return ErrLeaseLost
	case c.change != nil:
		return nil
	case found != c.again, found && !free && !now.opens(rec.Generation-1):
		return ErrConflict
	case found && !free:
		return nil
	}
	if err := d.finder.renewNear(r, c); err != nil {
		return err
	}
	taken, _, err := d.decideNear(r, c)
	if err == nil && taken != nil {
		err = ErrConflict
	}
	return err
}

// pending returns the group's batch, or the previous one if the group has no writes yet.
func (d *decider) pending(g *group) uint64 {
	if len(g.batch.Claims) > 0 || len(g.batch.State) > 0 {
		return d.seq + 1
	}
	return d.seq
}

// commitTime returns the time of the batch that is being decided. It never decreases. Only the
// committer calls it.
func (d *decider) commitTime() time.Time {
	if now := d.core.now(); now.After(d.committed) {
		d.committed = now
	}
	return d.committed
}
