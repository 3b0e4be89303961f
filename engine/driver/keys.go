package driver

import (
	"context"
	"iter"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// Keys are the durable keys of one key space, which a package of this module owns. Applications
// have no space; they use Engine.Get and Engine.Scan. Keys of different spaces and of the
// application cannot collide.
type Keys struct {
	e      *engine.Engine
	prefix []byte // of the state keys
}

// In returns the durable keys of a space.
func In(e *engine.Engine, space keyspace.Space) Keys { return Keys{e, e.Driver(key).Prefix(space)} }

// Get is Engine.Get in the space.
func (k Keys) Get(ctx context.Context, name []byte) (value []byte, found bool, err error) {
	return k.e.Driver(key).Keys(k.prefix).Get(ctx, name)
}

// Scan is Engine.Scan in the space.
func (k Keys) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.KeyValue, error] {
	return k.e.Driver(key).Keys(k.prefix).Scan(ctx, r)
}

// Reclaim frees the disk space of deleted and overwritten keys with the prefix, as far as the store
// can. It rewrites what the store has under the prefix, which may take long.
func (k Keys) Reclaim(ctx context.Context, prefix []byte) error {
	return k.e.Driver(key).Keys(k.prefix).Reclaim(ctx, prefix)
}

// TxKeys are the keys of one key space in a transaction.
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

// PutCommitTime sets a key to the time at which the transaction commits, by the engine's clock, in
// microseconds since 1970, encoded by engine.EncodeInt64. It is not a read. While the engine is
// open, the times of batches never decrease, whatever the clock does. Until the commit, the
// transaction itself reads the time of the call.
func (k TxKeys) PutCommitTime(name []byte) error {
	return k.tx.Driver(key).Keys(k.prefix, k.space).PutCommitTime(name)
}
