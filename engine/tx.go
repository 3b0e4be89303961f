package engine

import (
	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A Tx is a transaction. It is valid inside the closure given to Update, and safe for use by
// several goroutines there. Methods of a nil Tx, or of one whose closure has returned, return
// ErrNoTransaction and do nothing.
type Tx struct {
	e     *transactor
	owner occ.Owner // owner of its reservations

	member *lane.Member // nil if it is not in the lane
	turn   *lane.Turn   // nil if it runs without one

	// The fields below are guarded by status.mu.

	status txStatus
	req    *txRequest // its work; nil after the end
	state  txState    // reads and writes keys
	judge  txJudge    // judges events
	points savepoints

	behind owned               // the savepoints of the owner that calls the application
	parts  map[*subTx]struct{} // open parts
	part   *subTx              // the part whose transaction it is; nil if it is not of a part
}

// An ownerTx is a transaction that an owner uses (driver.OwnerTx).
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

// Savepoint returns a savepoint at the current point of the transaction.
func (tx *Tx) Savepoint() (Savepoint, error) {
	if err := tx.lock(); err != nil {
		return Savepoint{}, err
	}
	defer tx.status.mu.Unlock()
	return tx.savepoint(), nil
}

// savepoint is Savepoint for a caller that holds the lock.
func (tx *Tx) savepoint() Savepoint {
	done := tx.req.progress()
	done.verdicts, done.effective = tx.judge.watched.mark(), tx.judge.effective
	return Savepoint{&tx.status, tx.points.take(), done}
}

// RollbackTo undoes all claims, dead-letterings and writes since the savepoint was taken.
// Savepoints taken since then are no longer valid.
func (tx *Tx) RollbackTo(s Savepoint) error { return asApplication(tx).RollbackTo(s) }

// Savepoint is Tx.Savepoint for a package that then calls the application: the application cannot
// roll back to an earlier point.
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
