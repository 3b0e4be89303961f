package engine

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/internal/bridge"
	"github.com/hapax-dev/hapax/engine/limits"
)

// A subTx is a part of a transaction (driver.SubTx).
type subTx struct {
	tx *Tx // the part's own
	of *Tx

	base base
}

var errPartOfPart = errors.New("hapax: a part cannot have parts: begin them in the transaction of Update")

// beginPart begins a part of the transaction and returns the part's own transaction.
func (tx *Tx) beginPart() (*Tx, error) {
	if tx != nil && tx.state.base != nil {
		return nil, errPartOfPart
	}
	if err := tx.lock(); err != nil {
		return nil, err
	}
	defer tx.status.mu.Unlock()
	p := &subTx{tx: tx.e.newTx(), of: tx}
	p.tx.part = p
	p.base = base{status: &p.tx.status, points: &tx.points, req: tx.req, at: tx.savepoint(), seen: make(map[string]struct{})}
	p.tx.state.base, p.tx.judge.txFinder.base = &p.base, &p.base
	p.tx.status.whole = &tx.status
	p.tx.judge.lazy, p.tx.judge.ctx, p.tx.judge.watched = tx.judge.lazy, tx.judge.ctx, tx.judge.watched.forPart(&tx.e.core.observations)
	own := p.tx.req
	own.claimant = tx.req.claimant.Part()
	own.reads.Within(&tx.req.reads)
	if tx.parts == nil {
		tx.parts = make(map[*subTx]struct{})
	}
	tx.parts[p] = struct{}{}
	return p.tx, nil
}

// end joins the part to its transaction or discards it. p is nil if the transaction is not a part.
func (p *subTx) end(join bool) error {
	if p == nil {
		return ErrNoTransaction
	}
	tx, of := p.tx, p.of
	tx.status.mu.Lock()
	defer tx.status.mu.Unlock()
	if tx.req == nil {
		return ErrNoTransaction
	}
	if err := of.lock(); err != nil {
		p.abandon()
		return err
	}
	defer of.status.mu.Unlock()
	defer p.finish() // releases the reservations that were not moved
	delete(of.parts, p)
	err := p.check(join)
	var writes []txWrite
	if err == nil && join {
		writes, err = p.latest()
	}
	of.judge.watched.join(tx.judge.watched, join && err == nil)
	if err != nil {
		return err
	}
	of.judge.sawClaims = of.judge.sawClaims || tx.judge.sawClaims
	of.req.reads.Join(&tx.req.reads)
	if join {
		for v, n := range tx.judge.effective {
			of.judge.effective[v] += n
		}
		for _, w := range writes {
			of.req.writes.add(w, of.req.writes.find(w.StateWrite.Key))
		}
		first := len(of.req.claims.set.claims)
		of.req.claims.join(&tx.req.claims)
		tx.req.moveReservations(of.req.claims.set.claims, first)
	}
	return nil
}

// check returns an error if the part cannot be joined, or discarded. The caller holds the locks of
// both transactions.
func (p *subTx) check(join bool) error {
	own, whole, status := p.tx.req, p.of.req, &p.tx.status
	if status.lost == nil && p.base.isOutdated(own, p.tx.e.finder.filters) {
		status.lost = bridge.ErrPartOutdated
	}
	if status.lost != nil {
		return status.lost
	}
	err := asLimit(whole.reads.Fits(&own.reads))
	switch {
	case err != nil || !join:
		return err
	case len(whole.claims.set.claims)+len(own.claims.set.claims) > limits.TxClaims, len(whole.claims.set.arena)+len(own.claims.set.arena) > limits.TxBytes:
		return fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, limits.TxClaims, limits.TxBytes)
	}
	return whole.checkSize(own.writes.bytes + own.claims.dataBytes)
}

// latest returns the part's last write to each key, with its sums added to the transaction's
// writes. The caller holds the locks of both transactions.
func (p *subTx) latest() (writes []txWrite, err error) {
	own, whole := &p.tx.req.writes, &p.of.req.writes
	for i, w := range own.list {
		if !own.isLatest(i) {
			continue
		}
		if under := whole.find(w.StateWrite.Key); under >= 0 && w.isSum {
			if w, err = whole.list[under].plus(w.delta); err != nil {
				return nil, err
			}
		}
		writes = append(writes, w)
	}
	return writes, nil
}

// abandon ends the part of a transaction that has ended or cannot commit. The caller holds the lock
// of the part's own transaction.
func (p *subTx) abandon() {
	of := p.of
	of.status.mu.Lock()
	if of.req != nil { // the transaction has not reported to its observer yet
		of.judge.watched.join(p.tx.judge.watched, false)
	}
	of.status.mu.Unlock()
	p.finish()
}

// finish ends the part and releases its reservations. The caller holds the lock of the part's own
// transaction.
func (p *subTx) finish() {
	tx := p.tx
	tx.status.live, tx.status.lost = false, nil
	tx.judge.txFinder.undo(progress{})
	tx.judge.watched.free(&tx.e.core.observations)
	tx.judge.watched = nil
	tx.e.free(tx)
}

// endParts discards the open parts.
func (t *transactor) endParts(tx *Tx) {
	tx.status.mu.Lock()
	parts := tx.parts
	tx.parts = nil
	tx.status.mu.Unlock()
	for p := range parts {
		p.tx.status.mu.Lock()
		if p.tx.req != nil {
			p.abandon()
		}
		p.tx.status.mu.Unlock()
	}
}
