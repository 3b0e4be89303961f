package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// unclaim is driver.Unclaim.
func (tx *Tx) unclaim(ev Event, rec ClaimRecord) error {
	if err := tx.lockStore(); err != nil {
		return err
	}
	defer tx.status.unlockStore()
	e := tx.e
	ev.Scope = e.core.opt.scope(ev.Scope)
	week, err := ev.check(e.core.opt.MaxIDBytes, rec.FirstSeen)
	if err != nil {
		return err
	}
	if week < e.finder.retained.oldestOf(ev.Scope) {
		return ErrNotClaimed
	}
	u := &txUnclaim{scope: ev.Scope, week: week, key: storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(nil, ev.ID), rec: rec}
	u.hash = e.core.hash(u.key)
	if i, mine := tx.judge.txFinder.index(e.reserved.Get(e.core.lockName(u.key)), u.key); mine && tx.req.claims.set.claims[i].owned {
		return tx.req.belongs()
	}
	now, found, err := e.finder.readRetained(u.key, week)
	switch {
	case err != nil:
		return err
	case !found || !now.is(&rec):
		return ErrNotClaimed
	}
	name := []byte(claimRead(u.key))
	return tx.req.write(txWrite{StateWrite: storage.StateWrite{Key: name}, unclaim: u}, tx.req.writes.find(name))
}

// is reports whether both are records of the same generation of a claim.
func (r *ClaimRecord) is(other *ClaimRecord) bool {
	seen := r.FirstSeen.Equal(other.FirstSeen)
	a, b := *r, *other
	a.FirstSeen, b.FirstSeen = time.Time{}, time.Time{}
	leased := a.LeaseEnd.Equal(b.LeaseEnd)
	a.LeaseEnd, b.LeaseEnd = time.Time{}, time.Time{}
	return seen && leased && a == b
}
