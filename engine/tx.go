package engine

import (
	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A Tx is a transaction. It is valid inside the closure given to Update, and safe for use by
// several goroutines there. Methods of a nil Tx, or of one whose closure has returned, return
// ErrNoTransaction and touch nothing.
type Tx struct {
	e     *transactor
	owner occ.Owner // of its reservations

	member *lane.Member // nil if it is not in the lane
	turn   *lane.Turn   // nil if it runs without one

	// Guarded by status.mu:

	status txStatus
	req    *txRequest // its work; nil after it has ended
	state  txState    // reads and writes keys
	judge  txJudge    // judges events
	points savepoints

	behind owned               // what the owner that calls the application has done before
	parts  map[*subTx]struct{} // those that are open
	part   *subTx              // of which it is the transaction; nil if it is no part
}

// An ownerTx is a transaction as an owner uses it, see driver.OwnerTx.
type ownerTx struct {
	tx *Tx
	by keyspace.Space // zero for the application
}

func asApplication(tx *Tx) ownerTx { return ownerTx{tx: tx} }

func (tx *Tx) lock() error {
	if tx == nil {
		return ErrNoTransaction
	}
	return tx.status.lock()
}

func (tx *Tx) lockStore() error {
	if tx == nil {
		return ErrNoTransaction
	}
	return tx.status.lockStore()
}

// keys returns the state keys, nil for a nil Tx.
func (tx *Tx) keys() *txState {
	if tx == nil {
		return nil
	}
	return &tx.state
}

// Savepoint marks this point of the transaction.
func (tx *Tx) Savepoint() (Savepoint, error) {
	if err := tx.lock(); err != nil {
		return Savepoint{}, err
	}
	defer tx.status.mu.Unlock()
	return tx.savepoint(), nil
}

// savepoint is Savepoint with the lock held.
func (tx *Tx) savepoint() Savepoint {
	done := tx.req.progress()
	done.verdicts, done.effective = tx.judge.watched.mark(), tx.judge.effective
	return Savepoint{&tx.status, tx.points.take(), done}
}

// RollbackTo undoes everything claimed, dead-lettered and written since the savepoint was taken;
// what was before stays. Savepoints taken since then are no longer valid.
func (tx *Tx) RollbackTo(s Savepoint) error { return asApplication(tx).RollbackTo(s) }

// Savepoint is Tx.Savepoint for a package that calls the application next: the application cannot go
// back to a point before it.
func (o ownerTx) Savepoint() (Savepoint, error) {
	tx := o.tx
	if err := tx.lock(); err != nil {
		return Savepoint{}, err
	}
	defer tx.status.mu.Unlock()
	s := tx.savepoint()
	tx.behind = owned{o.by, s.serial}
	return s, nil
}

// RollbackTo is Tx.RollbackTo.
func (o ownerTx) RollbackTo(s Savepoint) error {
	tx := o.tx
	if err := tx.lockStore(); err != nil {
		return err
	}
	defer tx.status.unlockStore()
	if s.tx != &tx.status || !tx.points.valid(s.serial) {
		return &ArgumentError{"savepoint", "is not one of this transaction, or was undone by an earlier rollback"}
	}
	if s.serial < tx.behind.last && o.by != tx.behind.by {
		return belongs("savepoint", "was taken before the work that the application is called for, which", tx.behind.by, "take one in the same call of the handler")
	}
	tx.points.invalidate(s.serial)
	tx.judge.txFinder.undo(s.done)
	tx.judge.watched.undo(s.done.verdicts)
	tx.judge.effective = s.done.effective
	return nil
}
