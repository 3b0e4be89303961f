package engine

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A SubTx is a piece of a transaction that runs in parallel with others, in a goroutine of its own,
// and is joined to the transaction or discarded as a whole: for example the handling of one record
// of a batch.
//
// A part has a Tx of its own, which reads the transaction as it was when the part began, and its
// own writes. Other parts of the same transaction do not see its writes until it is joined. Two
// parts may claim the same event or write the same key concurrently: the one that is joined first
// succeeds. A part that has read or claimed something that the transaction has changed since the
// part began is outdated: Join and Discard return ErrPartOutdated, and it is run again in a new
// part. So the transaction is the same as if the joined parts had run one after the other, in the
// order in which they were joined. Verdicts and values in a part count only when Join or Discard
// has returned nil; so does a failure.
//
// An Add is not a read: parts that add to one key are joined in parallel, and an AddError may be
// returned by Join instead of Add.
//
// If two parts of one batch change the same key, one of them runs twice: run records of one key one
// after the other, as the order of a partition requires anyway. If a part is next in order and
// begins after the previous one was joined, it is never outdated.
//
// Until it is joined, each part may be as large as a whole transaction (limits.TxBytes,
// limits.TxClaims); the caller bounds the number of concurrent parts.
type SubTx struct {
	tx *Tx // the part's own
	of *Tx

	base base
}

var errPartOfPart = errors.New("hapax: a part has no parts: begin them from the transaction of Update")

// SubTx begins a part of the transaction. When the closure returns, parts that were neither joined
// nor discarded are discarded. The transaction itself may be used while its parts run; its calls
// are ordered like a part that is joined at that moment. A rollback to a savepoint undoes the parts
// that were joined after it, and makes those that began after it outdated.
func (tx *Tx) SubTx() (*SubTx, error) {
	if tx != nil && tx.state.base != nil {
		return nil, errPartOfPart
	}
	if err := tx.lock(); err != nil {
		return nil, err
	}
	defer tx.status.mu.Unlock()
	p := &SubTx{tx: tx.e.newTx(), of: tx}
	p.base = base{status: &p.tx.status, points: &tx.points, req: tx.req, at: tx.savepoint(), seen: make(map[string]struct{})}
	p.tx.state.base, p.tx.judge.txFinder.base = &p.base, &p.base
	p.tx.status.whole = &tx.status
	p.tx.judge.lazy, p.tx.judge.ctx, p.tx.judge.watched = tx.judge.lazy, tx.judge.ctx, tx.judge.watched.forPart(&tx.e.core.observations)
	own := p.tx.req
	own.claimant = tx.req.claimant.Part()
	own.reads.Within(&tx.req.reads)
	if tx.parts == nil {
		tx.parts = make(map[*SubTx]struct{})
	}
	tx.parts[p] = struct{}{}
	return p, nil
}

// Tx returns the transaction that the part runs in. Its methods are those of every Tx, savepoints
// included, and affect only the part: DeadLetter and RollbackTo do not affect what the transaction
// did before the part began.
func (p *SubTx) Tx() *Tx { return p.tx }

// Join adds the part's work to the transaction, and ends the part. If it returns an error, nothing
// was added: ErrPartOutdated if the work must run again in a new part, ErrLimit if the transaction
// would get too large, an AddError if a sum overflows with the transaction's writes, ErrConflict if
// the whole transaction conflicts, ErrNoTransaction if the part or the transaction has ended
// before.
func (p *SubTx) Join() error { return p.end(true) }

// Discard rolls the part back and ends it. It returns ErrPartOutdated if the transaction has
// changed what the part has read or claimed since it began: a failure of such a part has no
// meaning, and it must run again. The other errors are those of Join.
func (p *SubTx) Discard() error { return p.end(false) }

func (p *SubTx) end(join bool) error {
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
	defer p.finish() // releases what was not moved
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

// check reports why the part cannot be joined, or discarded. The locks of both transactions are
// held.
func (p *SubTx) check(join bool) error {
	own, whole, status := p.tx.req, p.of.req, &p.tx.status
	if status.lost == nil && p.base.isOutdated(own, p.tx.e.finder.filters) {
		status.lost = ErrPartOutdated
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

// latest returns the last write to each key, with sums added to the transaction's writes. The locks
// of both transactions are held.
func (p *SubTx) latest() (writes []txWrite, err error) {
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

// abandon ends the part of a transaction that has ended, or cannot commit. The lock of its own
// transaction is held.
func (p *SubTx) abandon() {
	of := p.of
	of.status.mu.Lock()
	if of.req != nil { // its observer has not been told of the end
		of.judge.watched.join(p.tx.judge.watched, false)
	}
	of.status.mu.Unlock()
	p.finish()
}

// finish ends the part and releases its reservations. The lock of its own transaction is held.
func (p *SubTx) finish() {
	tx := p.tx
	tx.status.live, tx.status.lost = false, nil
	tx.judge.txFinder.undo(progress{})
	tx.judge.watched.free(&tx.e.core.observations)
	tx.judge.watched = nil
	tx.e.free(tx)
}

// endParts discards the parts that are open.
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
