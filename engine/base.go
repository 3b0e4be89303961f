package engine

import (
	"slices"

	"github.com/hapax-dev/hapax/engine/internal/bridge"
	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A base is a part's view of its transaction: the transaction's state taken when the part began.
// Later changes of the transaction make the part outdated if they concern what it has read or
// claimed.
type base struct {
	status *txStatus // of the part
	points *savepoints
	req    *txRequest // only while the transaction is live
	at     Savepoint  // when the part began

	// Guarded by the lock of the part.
	seen   map[string]struct{} // keys whose values came from the transaction's writes
	judged []occ.Name          // claims on which verdicts of the part depend
}

// lock locks the transaction for a read by the part. The caller must unlock it.
func (b *base) lock() error {
	err := b.at.tx.lock()
	if err == nil && !b.points.valid(b.at.serial) {
		b.at.tx.mu.Unlock()
		err = bridge.ErrPartOutdated
	}
	if err != nil {
		b.status.lost = err
	}
	return err
}

func (b *base) unlock() { b.at.tx.mu.Unlock() }

// written returns the transaction's latest write to a key.
func (b *base) written(key []byte) (w txWrite, ok bool, err error) {
	if err := b.lock(); err != nil {
		return w, false, err
	}
	defer b.unlock()
	i := b.req.writes.find(key)
	if i < 0 {
		return w, false, nil
	}
	if i >= b.at.done.writes {
		b.status.lost = bridge.ErrPartOutdated
		return w, false, bridge.ErrPartOutdated
	}
	b.seen[string(key)] = struct{}{}
	return b.req.writes.list[i], true, nil
}

// writesIn is txWrites.in for the transaction's writes.
func (b *base) writesIn(span storage.Span, end []byte, limit int) (writes []txWrite, upTo []byte, err error) {
	if err := b.lock(); err != nil {
		return nil, nil, err
	}
	defer b.unlock()
	writes, upTo = b.req.writes.in(span, end, limit)
	for i := range writes {
		if int(b.req.writes.latest[writes[i].slot]) >= b.at.done.writes {
			b.status.lost = bridge.ErrPartOutdated
			return nil, nil, bridge.ErrPartOutdated
		}
	}
	return writes, upTo, nil
}

// claimed returns the record of the transaction's i-th claim. ok is false if the claim has another
// key or was made after the part began.
func (b *base) claimed(i int, key []byte) (rec ClaimRecord, ok bool) {
	if b.lock() != nil {
		return ClaimRecord{}, false
	}
	defer b.unlock()
	if i >= b.at.done.claims || b.altered(i) {
		b.status.lost = bridge.ErrPartOutdated
		return ClaimRecord{}, false
	}
	if !b.req.claims.set.isClaim(i, key) {
		return ClaimRecord{}, false
	}
	return b.req.claims.records[i], true
}

// isOwned reports whether the transaction's i-th claim belongs to an owner.
func (b *base) isOwned(i int, part *txRequest) bool {
	if b.lock() != nil {
		return false
	}
	defer b.unlock()
	part.claimedBy = b.req.claimedBy
	return i < len(b.req.claims.set.claims) && b.req.claims.set.claims[i].owned
}

// altered reports whether the transaction has changed the record of a claim since the part began.
// The caller holds the transaction's lock.
func (b *base) altered(claim int) bool {
	return slices.ContainsFunc(b.req.claims.altered[b.at.done.altered:], func(a altered) bool { return a.claim == claim })
}

// isOutdated reports whether the transaction has changed what the part has read or claimed, or was
// rolled back to a point before the part began. The caller holds the locks of both.
func (b *base) isOutdated(own *txRequest, s *filters.Set) bool {
	if !b.points.valid(b.at.serial) {
		return true
	}
	for _, w := range b.req.writes.list[b.at.done.writes:] {
		if _, seen := b.seen[string(w.StateWrite.Key)]; seen || own.reads.Contains(string(w.StateWrite.Key)) {
			return true
		}
	}
	for _, a := range b.req.claims.altered[b.at.done.altered:] {
		if a.claim < b.at.done.claims && slices.Contains(b.judged, b.req.claims.set.claims[a.claim].lock) {
			return true
		}
	}
	if len(b.req.claims.set.claims) == b.at.done.claims {
		return false
	}
	// a claim in a week that the part's events with the time of their arrival have not looked at
	missed := own.claims.set.nearVersion > 0 && own.claims.set.nearVersion != s.Version()
	return missed || own.claimant.HasClaimedSince(b.judged, b.at.done.claims)
}
