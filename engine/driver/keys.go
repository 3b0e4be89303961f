package driver

import (
	"context"
	"iter"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// Keys are the durable keys of one key space, which a package of this module owns. Applications have
// no space: theirs are the keys of Engine.Get and Engine.Scan. Keys of a space and of others cannot
// collide.
type Keys struct {
	e      *engine.Engine
	prefix []byte // of the state keys
}

// In returns the keys of a space.
func In(e *engine.Engine, space keyspace.Space) Keys { return Keys{e, e.Driver(key).Prefix(space)} }

// Get is Engine.Get in the space.
func (k Keys) Get(ctx context.Context, name []byte) (value []byte, found bool, err error) {
	return k.e.Driver(key).Keys(k.prefix).Get(ctx, name)
}

// Scan is Engine.Scan in the space.
func (k Keys) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.KeyValue, error] {
	return k.e.Driver(key).Keys(k.prefix).Scan(ctx, r)
}

// Reclaim gives the disk space of keys with the prefix that were deleted or overwritten back, as far
// as the store can. It rewrites what the store has under the prefix, and may take long.
func (k Keys) Reclaim(ctx context.Context, prefix []byte) error {
	return k.e.Driver(key).Keys(k.prefix).Reclaim(ctx, prefix)
}

// TxKeys are the keys of one key space as a transaction sees them.
type TxKeys struct {
	tx     *engine.Tx
	prefix []byte // of the state keys
	space  keyspace.Space
}

// TxIn returns the keys of a space in a transaction.
func TxIn(tx *engine.Tx, space keyspace.Space) TxKeys {
	return TxKeys{tx, tx.Driver(key).Prefix(space), space}
}

// Get is Tx.Get in the space.
func (k TxKeys) Get(name []byte) (value []byte, found bool, err error) {
	return k.tx.Driver(key).Keys(k.prefix, k.space).Get(name)
}

// Put is Tx.Put in the space.
func (k TxKeys) Put(name, value []byte) error {
	return k.tx.Driver(key).Keys(k.prefix, k.space).Put(name, value)
}

// Delete is Tx.Delete in the space.
func (k TxKeys) Delete(name []byte) error {
	return k.tx.Driver(key).Keys(k.prefix, k.space).Delete(name)
}

// Add is Tx.Add in the space.
func (k TxKeys) Add(name []byte, delta int64) error {
	return k.tx.Driver(key).Keys(k.prefix, k.space).Add(name, delta)
}

// Scan is Tx.Scan in the space.
func (k TxKeys) Scan(r engine.Range) iter.Seq2[engine.KeyValue, error] {
	return k.tx.Driver(key).Keys(k.prefix, k.space).Scan(r)
}

// PutCommitTime sets a key to the time at which the transaction commits, by the clock of the
// engine, in microseconds since 1970 and in the form of engine.EncodeInt64. It reads nothing.
// While the engine is open, a batch never has an earlier time than the batches before it,
// whatever the clock does. Until the commit the transaction itself reads the time of the call.
func (k TxKeys) PutCommitTime(name []byte) error {
	return k.tx.Driver(key).Keys(k.prefix, k.space).PutCommitTime(name)
}
