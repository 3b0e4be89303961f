package engine

import (
	"cmp"
	"slices"
)

// A Savepoint is a point in a transaction that it can go back to.
type Savepoint struct {
	tx     *Tx
	serial uint64
	at     progress
}

// savepoints are those that a transaction has taken.
type savepoints struct {
	last   uint64    // the serial number of the last one
	undone []serials // those that are not valid any more, rising
}

// serials are those after the first one, up to the last one.
type serials struct{ after, last uint64 }

// take returns the serial number of a new savepoint.
func (p *savepoints) take() uint64 {
	p.last++
	return p.last
}

// progress is how much of what a transaction does is done.
type progress struct {
	claims, keys, near, altered, writes, verdicts int
	kept                                          verdictCounts
}

// Savepoint marks this point of the transaction.
func (tx *Tx) Savepoint() (Savepoint, error) {
	if err := tx.lock(); err != nil {
		return Savepoint{}, err
	}
	defer tx.mu.Unlock()
	return tx.savepoint(), nil
}

// savepoint is Savepoint with tx.mu held.
func (tx *Tx) savepoint() Savepoint {
	r := tx.req
	return Savepoint{tx, tx.points.take(), progress{
		len(r.claims), len(r.arena), len(r.near), len(tx.altered), len(tx.writes.list), tx.watched.mark(), tx.kept,
	}}
}

// RollbackTo undoes everything claimed, dead-lettered and written since the savepoint was taken;
// what was before stays. Savepoints taken since then are no longer valid.
func (tx *Tx) RollbackTo(s Savepoint) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	if s.tx != tx || !tx.points.valid(s.serial) {
		return &KeyError{"savepoint", "is not one of this transaction, or was undone by an earlier rollback"}
	}
	tx.points.invalidate(s.serial)
	tx.undo(s.at)
	tx.watched.undo(s.at.verdicts)
	tx.kept = s.at.kept
	return nil
}

// valid reports whether no rollback went back behind the savepoint.
func (p *savepoints) valid(serial uint64) bool {
	i, _ := slices.BinarySearchFunc(p.undone, serial, func(u serials, serial uint64) int { return cmp.Compare(u.last, serial) })
	return i == len(p.undone) || serial <= p.undone[i].after
}

// invalidate makes all savepoints invalid that were taken after the given one.
func (p *savepoints) invalidate(after uint64) {
	n := len(p.undone)
	for n > 0 && p.undone[n-1].after >= after {
		n--
	}
	if p.undone = p.undone[:n]; after < p.last {
		p.undone = append(p.undone, serials{after, p.last})
	}
}

// undo takes back what was done since to.
func (tx *Tx) undo(to progress) {
	r := tx.req
	for n := len(tx.altered) - 1; n >= to.altered; n-- {
		a := &tx.altered[n]
		tx.bytes += len(a.before.Data) - len(r.records[a.claim].Data)
		r.records[a.claim] = a.before
	}
	clear(tx.altered[to.altered:])
	tx.altered = tx.altered[:to.altered]
	tx.e.tx.release(tx, to.claims)
	clear(r.claims[to.claims:])
	clear(r.records[min(to.claims, len(r.records)):])
	r.claims, r.records = r.claims[:to.claims], r.records[:to.claims]
	r.arena, r.near = r.arena[:to.keys], r.near[:to.near]
	for i := range tx.writes.list[to.writes:] {
		tx.bytes -= tx.writes.list[to.writes+i].size()
	}
	tx.writes.undo(to.writes)
}
