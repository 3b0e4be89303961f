// Package keyspace names key spaces of an engine that packages of this module own. Application keys
// and the keys of other spaces cannot collide with the keys of a space, and a scan of one space
// never returns keys of another.
package keyspace

import (
	"context"
	"iter"
	"strings"
)

// A Space is a key space. Only packages of this module can make one other than the zero value,
// which is not a space.
type Space struct{ name string }

// New returns the space with the given name: 1 to 64 characters a-z, 0-9, '-' and '/'. The name is
// part of the format on disk. New panics on any other name, so call it in the declaration of a
// package variable.
func New(name string) Space {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-/"
	if name == "" || len(name) > 64 || strings.Trim(name, allowed) != "" {
		panic("hapax: key space name " + name + ": use 1 to 64 characters a-z, 0-9, - and /")
	}
	return Space{name}
}

// Name returns the name, "" for the zero value.
func (s Space) Name() string { return s.name }

// Keys are the durable keys of a space (engine.Engine.In). R is engine.Range and KV is
// engine.KeyValue, as package engine imports this one. Get and Scan are those of engine.Engine in
// the space.
type Keys[R, KV any] interface {
	Get(ctx context.Context, key []byte) (value []byte, found bool, err error)
	Scan(ctx context.Context, r R) iter.Seq2[KV, error]

	// Reclaim gives the disk space of keys with the prefix that were deleted or overwritten back,
	// as far as the store can: see ReclaimState of the store. It rewrites what the store has under
	// the prefix, and may take long.
	Reclaim(ctx context.Context, prefix []byte) error
}

// TxKeys are the keys of a space as a transaction sees them (engine.Tx.In). The methods are those
// of engine.Tx in the space, and PutCommitTime.
type TxKeys[R, KV any] interface {
	Get(key []byte) (value []byte, found bool, err error)
	Put(key, value []byte) error
	Delete(key []byte) error
	Add(key []byte, delta int64) error
	Scan(r R) iter.Seq2[KV, error]

	// PutCommitTime sets a key to the time at which the transaction commits, by the clock of the
	// engine, in microseconds since 1970 and in the form of engine.EncodeInt64. It reads nothing.
	// While the engine is open, a batch never has an earlier time than the batches before it,
	// whatever the clock does. Until the commit the transaction itself reads the time of the call.
	PutCommitTime(key []byte) error
}
