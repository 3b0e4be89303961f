package driver

import (
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// An Ownership is what a package of this module uses in an engine and changes alone, such as the
// offsets of the consumer group of a running consumer. Applications own nothing; their calls are
// rejected with an engine.ArgumentError that names the owner. Everybody may read.
type Ownership struct {
	Owner keyspace.Space
	// Group is the consumer group whose offsets are owned.
	Group string
	// OwnsHold reports whether a hold is owned. It is called at any time, and must not call the engine.
	OwnsHold func(name string) bool
	// Instead says what an application does instead of such a call.
	Instead string
}

// Own begins an ownership, until release is called. Owners of the same space share what they own; they
// change it as the OwnerTx of their space.
func Own(e *engine.Engine, o Ownership) (release func()) {
	return e.Driver(key).Own(o.Owner, o.Group, o.OwnsHold, o.Instead)
}

// An OwnerTx is a transaction as the owner of a space uses it. The methods of engine.Tx with the same
// names are the application's.
type OwnerTx struct {
	tx *engine.Tx
	by keyspace.Space
}

// As returns the transaction as the owner of a space uses it.
func As(tx *engine.Tx, space keyspace.Space) OwnerTx { return OwnerTx{tx, space} }

// TryClaim is Tx.TryClaim. The claim is the owner's until the transaction ends.
func (o OwnerTx) TryClaim(ev engine.Event) (engine.Result, error) {
	return o.tx.Driver(key).As(o.by).TryClaim(ev)
}

// TryReopen is Tx.TryReopen. The claim is the owner's until the transaction ends.
func (o OwnerTx) TryReopen(ev engine.Event, generation uint64) (engine.Result, error) {
	return o.tx.Driver(key).As(o.by).TryReopen(ev, generation)
}

// DeadLetter is Tx.DeadLetter.
func (o OwnerTx) DeadLetter(ev engine.Event) (engine.ClaimRecord, error) {
	return o.tx.Driver(key).As(o.by).DeadLetter(ev)
}

// Savepoint is Tx.Savepoint for a package that calls the application next: the application cannot go
// back to a point before it.
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
