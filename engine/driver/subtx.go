package driver

import (
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/internal/bridge"
)

// A SubTx is a part of a transaction that runs in parallel with other parts, in its own goroutine,
// and is joined to the transaction or discarded as a whole: for example the handling of one record
// of a batch.
//
// A part has its own Tx, which reads the transaction as of the start of the part, and the part's
// own writes. Other parts of the same transaction do not see its writes until it is joined. Two
// parts may claim the same event or write the same key concurrently: the one that is joined first
// succeeds. A part that has read or claimed something that the transaction has changed since the
// part began is outdated: Join and Discard return ErrPartOutdated, and the work must run again in a
// new part. So the transaction is the same as if the joined parts had run one after the other, in
// the order in which they were joined. Verdicts, values and failures in a part are valid only when
// Join or Discard has returned nil.
//
// An Add is not a read: parts that add to one key are joined in parallel, and an engine.AddError may be
// returned by Join instead of Add.
//
// If two parts of one batch change the same key, one of them runs twice: run the records of a key
// one after the other, as the order of a partition requires anyway. A part that begins after the
// previous one was joined, and is joined next, is never outdated.
//
// Until it is joined, each part may be as large as a whole transaction (limits.TxBytes,
// limits.TxClaims); the caller bounds the number of concurrent parts.
type SubTx struct{ tx *engine.Tx }

// ErrPartOutdated means that a part of a transaction has read or claimed something that the
// transaction has changed since the part began. Nothing of the part was joined; the work may run
// again in a new part.
var ErrPartOutdated = bridge.ErrPartOutdated

// BeginSubTx begins a part of the transaction. When the closure returns, parts that were neither
// joined nor discarded are discarded. The transaction itself may be used while its parts run; each
// of its calls is ordered like a part that is joined at that time. A rollback to a savepoint undoes
// the parts that were joined after it, and outdates those that began after it.
func BeginSubTx(tx *engine.Tx) (SubTx, error) {
	own, err := tx.Driver(key).BeginSubTx()
	return SubTx{own}, err
}

// Tx returns the transaction for the work of the part. It has all methods of a Tx, including
// savepoints, and affects only the part: DeadLetter and RollbackTo do not affect what the
// transaction did before the part began.
func (p SubTx) Tx() *engine.Tx { return p.tx }

// Join adds the part's work to the transaction, and ends the part. If it returns an error, nothing
// was added. The error is ErrPartOutdated if the work must run again in a new part, or an error of
// package engine: ErrLimit if the transaction would become too large, an AddError if a sum
// overflows with the transaction's writes, ErrConflict if the whole transaction conflicts, or
// ErrNoTransaction if the part or the transaction has already ended.
func (p SubTx) Join() error { return p.tx.Driver(key).EndSubTx(true) }

// Discard rolls the part back and ends it. It returns ErrPartOutdated if the transaction has
// changed what the part has read or claimed since it began: then a failure of the part is not
// valid, and the work must run again. The other errors are those of Join.
func (p SubTx) Discard() error { return p.tx.Driver(key).EndSubTx(false) }
