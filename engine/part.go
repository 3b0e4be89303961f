package engine

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A Part is a piece of a transaction that runs in parallel with others, in a goroutine of its own,
// and is joined to the transaction or discarded as a whole: for example the handling of one record
// of a batch.
//
// A part has a Tx of its own, which reads the transaction as it was when the part began, and its
// own writes. Others of the same transaction do not see what it does until it is joined. Two parts
// may claim the same event or write the same key at once: whichever is joined first has it. A part
// that has read or claimed what the transaction has got since the part began is outdated: it is
// refused with ErrPartOutdated, and run again in a new part. So the transaction is what it would be
// if the parts that are joined had run one after the other, in the order in which they were joined.
// Verdicts and values that a part was given count only once Join or Discard has returned nil; so
// does a failure.
//
// An Add is not a read: parts that add to one key are joined in parallel, and what would be an
// AddError of Add is one of Join.
//
// Keys that two parts of one batch both change make one of them run twice: run records of one key
// one after the other, as a partition's order asks for anyway. The part that is next in order and
// is begun after the one before it was joined is never outdated.
//
// Each part may take as much as a whole transaction may (limits.TxBytes, limits.TxClaims) until it
// is joined; the caller bounds how many there are at a time.
type Part struct {
	tx *Tx // the part's own
	of *Tx

	base base
}

var errPartOfPart = errors.New("hapax: a part has no parts: begin them from the transaction of Update")

// Part begins a part of the transaction. When the closure returns, parts that were neither joined
// nor discarded are discarded. The transaction itself may be used while its parts run; what it does
// is ordered like a part that is joined at that moment. Going back to a savepoint undoes the parts
// that were joined after it, and makes outdated those that began after it.
func (tx *Tx) Part() (*Part, error) {
	if tx != nil && tx.state.base != nil {
		return nil, errPartOfPart
	}
	if err := tx.lock(); err != nil {
		return nil, err
	}
	defer tx.status.mu.Unlock()
	p := &Part{tx: tx.e.newTx(), of: tx}
	p.base = base{status: &p.tx.status, points: &tx.points, req: tx.req, at: tx.savepoint(), seen: make(map[string]struct{})}
	p.tx.state.base, p.tx.judge.base = &p.base, &p.base
	p.tx.status.whole = &tx.status
	p.tx.judge.lazy, p.tx.judge.watched = tx.judge.lazy, tx.judge.watched.forPart(&tx.e.observations)
	own := p.tx.req
	own.claimant = claimant{owner: tx.req.owner, mine: make(map[lockName]int)}
	own.reads.start, own.reads.since = tx.req.reads.start, tx.req.reads.since
	if tx.parts == nil {
		tx.parts = make(map[*Part]struct{})
	}
	tx.parts[p] = struct{}{}
	return p, nil
}

// Tx returns the transaction that the part runs in. Its methods are those of every Tx, savepoints
// included, and reach what the part itself has done: DeadLetter and RollbackTo do not reach what
// the transaction did before the part began.
func (p *Part) Tx() *Tx { return p.tx }

// Join adds what the part has done to the transaction, and ends the part. With an error nothing of
// it was added: ErrPartOutdated if it has to run again in a new part, ErrLimit if the transaction
// would get too large, an AddError if what it adds does not go together with what the transaction
// has written, ErrConflict if the transaction as a whole has lost, ErrNoTransaction if the part or
// the transaction has ended before.
func (p *Part) Join() error { return p.end(true) }

// Discard undoes what the part has done, and ends the part. It returns ErrPartOutdated if the part
// has read or claimed what the transaction has got since it began: a failure of such a part has no
// meaning, and it has to run again. The other errors are those of Join.
func (p *Part) Discard() error { return p.end(false) }

func (p *Part) end(join bool) error {
	tx, of := p.tx, p.of
	tx.status.mu.Lock()
	defer tx.status.mu.Unlock()
	if tx.req == nil {
		return ErrNoTransaction
	}
	if err := of.lock(); err != nil {
		p.finish()
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
	of.judge.told = of.judge.told || tx.judge.told
	of.req.reads.join(&tx.req.reads)
	if join {
		for v, n := range tx.judge.kept {
			of.judge.kept[v] += n
		}
		for _, w := range writes {
			of.req.writes.add(w, of.req.writes.find(w.Key))
		}
		first := len(of.req.claims)
		of.req.join(&tx.req.txClaims)
		tx.e.tx.moveClaims(of.req.claims[first:], first)
	}
	return nil
}

// check says whether the part can be joined, or discarded. The locks of both transactions are held.
func (p *Part) check(join bool) error {
	own, whole, status := p.tx.req, p.of.req, &p.tx.status
	if status.lost == nil && p.base.isOutdated(&own.reads, &p.tx.e.tx) {
		status.lost = ErrPartOutdated
	}
	if status.lost != nil {
		return status.lost
	}
	err := whole.reads.fits(&own.reads)
	switch {
	case err != nil || !join:
		return err
	case len(whole.claims)+len(own.claims) > limits.TxClaims, len(whole.arena)+len(own.arena) > limits.TxBytes:
		return fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, limits.TxClaims, limits.TxBytes)
	}
	return whole.checkSize(own.writes.bytes + own.dataBytes)
}

// latest returns the last write to each key, what was added on top of what the transaction has
// written. The locks of both transactions are held.
func (p *Part) latest() (writes []txWrite, err error) {
	own, whole := &p.tx.req.writes, &p.of.req.writes
	for i, w := range own.list {
		if !own.isLatest(i) {
			continue
		}
		if under := whole.find(w.Key); under >= 0 && w.isSum {
			if w, err = whole.list[under].plus(w.delta); err != nil {
				return nil, err
			}
		}
		writes = append(writes, w)
	}
	return writes, nil
}

// finish ends the part and gives its reservations back. The lock of its own transaction is held.
func (p *Part) finish() {
	tx := p.tx
	tx.status.live, tx.status.lost = false, nil
	tx.judge.undo(progress{})
	tx.judge.watched.free(&tx.e.observations)
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
			p.finish()
		}
		p.tx.status.mu.Unlock()
	}
}
