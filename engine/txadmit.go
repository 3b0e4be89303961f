package engine

// admitTx decides a transaction: either all of it goes into the group or nothing.
func (e *Engine) admitTx(g *group, r *request) error {
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
		if err := e.validate(r, c, rec, &now, found); err != nil {
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
