package engine

import (
	"errors"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The committer decides every request here, one after the other: claims that commit by themselves,
// transactions, and commands.

func (r *ownClaims) admit(e *Engine, g *group) (wait bool) {
	r.err = e.admitOwn(g, r)
	return true
}

func (r *txClaims) admit(e *Engine, g *group) (wait bool) {
	if r.err = e.admitTx(g, r); errors.Is(r.err, ErrConflict) {
		r.tx.lostTo = e.pending(g)
		return false
	}
	return true
}

func (r *command) admit(_ *Engine, g *group) (wait bool) {
	r.err = r.run(g)
	return true
}

func (e *Engine) admitOwn(g *group, r *ownClaims) error {
	for i := range r.claims {
		c := &r.claims[i]
		key := r.key(&c.place)
		if c.change != nil {
			if err := e.admitChange(g, &r.claimSet, c); err != nil {
				return err
			}
			continue
		}
		if c.week < e.decidedOldest(c.scope) {
			*c.result = Result{Verdict: TooOld}
			continue
		}
		var old, rec Record
		var there, found bool
		var err error
		held := e.tx.reserved(key)
		if !held {
			old, there, err = e.decide(key, c)
			rec, found = old, there && !c.takes(&old)
		}
		if err == nil && !found && c.nearEnd > c.nearAt { // a claim in another week comes before a reservation
			inFlight := held
			rec, found, held, err = e.decideNear(&r.claimSet, c)
			held = held || inFlight
		}
		if err != nil {
			return err
		}
		if found {
			*c.result = c.answer(&rec)
			continue
		}
		if held {
			*c.result = Result{Verdict: InFlight}
			continue
		}
		rec = newRecord(c.event, c.seen)
		if c.again = there; there {
			rec.Generation = old.Generation + 1
		}
		if err := e.claim(g, key, c, &rec); err != nil {
			*c.result = Result{Verdict: Failed, Err: err}
			continue
		}
		if there && old.State == DeadLettered {
			e.tx.changed(key, e.seq+1)
		}
		*c.result = Result{Verdict: Claimed, Record: rec, Lease: newLease(c.event, &rec, c.seen)}
	}
	return nil
}

// decide says whether the claim exists, in this group or before it, and marks it in the filter. It
// is the only place in which an event is found to be new.
func (e *Engine) decide(key []byte, c *candidate) (Record, bool, error) {
	if e.screen.add(c.week, c.hash) {
		e.screen.negatives.Add(1)
		return Record{}, false, nil
	}
	rec, found, err := e.find(key, c.hash)
	if err == nil && !found && e.screen.trusted.Load() {
		e.screen.falsePositives.Add(1)
	}
	return rec, found, err
}

// find returns the claim that is in this group or before it, without a look at the filter.
func (e *Engine) find(key []byte, hash uint64) (Record, bool, error) {
	if rec, put := e.put.find(key, hash); put {
		return rec, rec.State != 0, nil
	}
	return e.read(key)
}

// claim puts a claim with the given record into the group, or the record of its next life. It
// fails, with nothing added, if scope or topic is one name too many.
func (e *Engine) claim(g *group, key []byte, c *candidate, rec *Record) error {
	scope, topic, err := e.refs(g, c.scope, rec.Origin.Topic, c.week)
	if err != nil {
		return err
	}
	at := len(g.records)
	g.records = appendRecord(g.records, rec, topic)
	g.batch.Claims = append(g.batch.Claims, storage.ClaimWrite{Key: key, Record: g.records[at:len(g.records):len(g.records)]})
	g.claims++
	g.bytes += len(key) + len(g.records) - at
	e.put.add(key, c.hash, *rec)
	if c.again {
		return nil // it was counted, and its hash noted, when it was made
	}
	ref := bucketRef{scope, c.week}
	g.journal.add(ref, journalPut, c.hash)
	e.screen.put(ref, c.hash)
	return nil
}

// refs returns the numbers of a scope and a topic for a claim in a week.
func (e *Engine) refs(g *group, scope, topic string, week weekbucket.Week) (s, t uint64, err error) {
	if s, g.batch.State, err = e.names.ref(scope, asScope, week, g.batch.State); err != nil {
		return 0, 0, err
	}
	t, g.batch.State, err = e.names.ref(topic, asTopic, week, g.batch.State)
	return s, t, err
}

// admitChange decides what the holder of a lease asks for by itself.
func (e *Engine) admitChange(g *group, r *claimSet, c *candidate) error {
	key := r.key(&c.place)
	rec, found, err := e.find(key, c.hash)
	if err != nil {
		return err
	}
	if c.change.err = e.holdsLease(r, c, &rec, found); c.change.err != nil {
		return e.Err() // nil unless the store failed
	}
	c.change.apply(&rec, c.seen)
	c.change.err = e.claim(g, key, c, &rec)
	return nil
}

// admitTx decides a transaction: either all of it goes into the group or nothing.
func (e *Engine) admitTx(g *group, r *txClaims) error {
	tx := r.tx
	lost, met := e.tx.overtaken(tx)
	if lost > 0 {
		return ErrConflict
	}
	if err := e.holds.admit(tx); err != nil {
		return err
	}
	for i := range r.claims {
		c := &r.claims[i]
		if c.week < e.decidedOldest(c.scope) {
			return ErrWeekDropped
		}
		rec := &r.records[i]
		now, found, err := e.decide(r.key(&c.place), c)
		if err != nil {
			return err
		}
		if err := e.validate(&r.claimSet, c, rec, &now, found); err != nil {
			return err
		}
		if _, _, err := e.refs(g, c.scope, rec.Origin.Topic, c.week); err != nil {
			return err
		}
	}
	if err := e.checkUnclaims(g, tx); err != nil {
		return err
	}
	if err := e.resolveSums(g, tx); err != nil {
		return err
	}
	for i := range r.claims {
		c := &r.claims[i]
		if err := e.claim(g, r.key(&c.place), c, &r.records[i]); err != nil {
			return e.stop(err) // cannot be: its names are known by now
		}
	}
	if err := e.admitWrites(g, tx); err != nil {
		return e.stop(err) // cannot be, for the same reason
	}
	e.writeSums(g, tx)
	e.tx.wrote(tx, e.seq+1)
	tx.owner.won.Store(e.seq + 1)
	tx.member.committed(e.seq+1, met)
	return nil
}

// admitWrites puts the writes of a transaction into the group, and gives the entries of the outbox
// among them their keys.
func (e *Engine) admitWrites(g *group, tx *Tx) error {
	produced := false
	for i := range tx.writes.list {
		write := &tx.writes.list[i]
		if write.isSum || !tx.writes.isLatest(i) {
			continue
		}
		if write.atCommit {
			write.Value = EncodeInt64(e.commitTime().UnixMicro())
		}
		w := write.StateWrite
		if u := write.unclaim; u != nil {
			if err := e.unclaim(g, u); err != nil {
				return err
			}
			continue
		}
		if w.Key[0] == stateProduced {
			w.Key, produced = e.outbox.admit(w.Key), true
		}
		g.batch.State = append(g.batch.State, w)
		g.bytes += len(w.Key) + len(w.Value)
		e.holds.noteWrite(w)
	}
	if produced {
		g.batch.State = append(g.batch.State, e.outbox.count())
		g.produced = true
	}
	return nil
}

// validate says why a claim of a transaction cannot commit, nil if it can. now is what is kept
// about it.
func (e *Engine) validate(r *claimSet, c *candidate, rec, now *Record, found bool) error {
	if c.change != nil {
		return e.holdsLease(r, c, now, found)
	}
	next := found && now.Generation == rec.Generation-1
	free := next && c.takes(now)
	switch {
	case found != c.again, found && !free && !now.opens(rec.Generation-1):
		return ErrConflict
	case found && !free:
		return nil
	}
	_, taken, _, err := e.decideNear(r, c)
	if err == nil && taken {
		err = ErrConflict
	}
	return err
}
