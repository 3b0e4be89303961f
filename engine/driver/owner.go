package driver

import (
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// An Ownership describes what only a package of this module may change in an engine, such as the
// offsets of a running consumer's group. Applications own nothing; their changes are rejected with
// an engine.ArgumentError that names the owner. Everybody may read.
type Ownership struct {
	Owner keyspace.Space
	// Group is the consumer group whose offsets are owned.
	Group string
	// Holds returns the names of the owned holds. complete reports whether these are the holds of all
	// that the owner is about to read: the engine drops the weeks of a missed night when they have been
	// placed. Holds may be called at any time, and must not call the engine.
	Holds func() (names []string, complete bool)
	// Instead says what an application should do instead of the rejected call.
	Instead string
}

// Own starts an ownership, which lasts until release is called. Owners of the same space share what
// they own, and change it with the OwnerTx of their space.
func Own(e *engine.Engine, o Ownership) (release func()) {
	return e.Driver(key).Own(o.Owner, o.Group, o.Holds, o.Instead)
}

// An OwnerTx is a transaction that the owner of a space uses. Applications use the methods of
// engine.Tx with the same names.
type OwnerTx struct {
	tx *engine.Tx
	by keyspace.Space
}

// As returns the OwnerTx of the transaction for the owner of a space.
func As(tx *engine.Tx, space keyspace.Space) OwnerTx { return OwnerTx{tx, space} }

// TryClaim is Tx.TryClaim. The claim belongs to the owner until the transaction ends.
func (o OwnerTx) TryClaim(ev engine.Event) (engine.Result, error) {
	return o.tx.Driver(key).As(o.by).TryClaim(ev)
}

// TryReopen is Tx.TryReopen. The claim belongs to the owner until the transaction ends.
func (o OwnerTx) TryReopen(ev engine.Event, generation uint64) (engine.Result, error) {
	return o.tx.Driver(key).As(o.by).TryReopen(ev, generation)
}

// DeadLetter is Tx.DeadLetter.
func (o OwnerTx) DeadLetter(ev engine.Event) (engine.ClaimRecord, error) {
	return o.tx.Driver(key).As(o.by).DeadLetter(ev)
}

// Savepoint is Tx.Savepoint for a package that then calls the application: the application cannot
// roll back to an earlier point.
func (o OwnerTx) Savepoint() (engine.Savepoint, error) { return o.tx.Driver(key).As(o.by).Savepoint() }

// RollbackTo is Tx.RollbackTo.
func (o OwnerTx) RollbackTo(s engine.Savepoint) error {
	return o.tx.Driver(key).As(o.by).RollbackTo(s)
}

// SetOffset is Tx.SetOffset.
func (o OwnerTx) SetOffset(p engine.OffsetKey, next engine.Offset) error {
	return o.tx.Driver(key).As(o.by).SetOffset(p, next)
}

// DeleteOffset is Tx.DeleteOffset.
func (o OwnerTx) DeleteOffset(p engine.OffsetKey) error {
	return o.tx.Driver(key).As(o.by).DeleteOffset(p)
}

// SetHold is Tx.SetHold.
func (o OwnerTx) SetHold(name string, at time.Time) error {
	return o.tx.Driver(key).As(o.by).SetHold(name, at)
}

// ReleaseHold is Tx.ReleaseHold.
func (o OwnerTx) ReleaseHold(name string) error { return o.tx.Driver(key).As(o.by).ReleaseHold(name) }
