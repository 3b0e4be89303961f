package engine

import (
	"fmt"
	"iter"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// txSpaceKeys are the keys of one key space in a transaction (driver.TxKeys).
type txSpaceKeys struct {
	state  *txState
	prefix []byte
	space  keyspace.Space // writing owner; zero for the application
}

func applicationKeys(tx *Tx) txSpaceKeys {
	return txSpaceKeys{tx.keys(), applicationSpace, keyspace.Space{}}
}

// Get returns the value of an application key: the transaction's own write, or else the stored
// value as of the start of the transaction. found distinguishes an absent key from an empty value.
// ErrConflict means that the key was written since the transaction began, so the transaction can no
// longer commit.
func (tx *Tx) Get(key []byte) (value []byte, found bool, err error) {
	return applicationKeys(tx).Get(key)
}

// Put sets an application key. It copies key and value. An empty key, or one longer than
// limits.KeyBytes, and a value longer than limits.ValueBytes are an ArgumentError; ErrLimit means
// that the transaction is too large. Keys that a package of this module owns, such as those that
// begin with kafkaadapter.KeyPrefix, are read-only: Put, Delete and Add return an ArgumentError
// that names the owner.
func (tx *Tx) Put(key, value []byte) error { return applicationKeys(tx).Put(key, value) }

// Delete removes an application key, if it exists.
func (tx *Tx) Delete(key []byte) error { return applicationKeys(tx).Delete(key) }

// Scan returns an iterator over the application's keys in a range, in the order of their bytes: the
// transaction's own writes, and the stored keys as of the start of the transaction.
//
// A scan reads its range up to the last key returned, absent keys included, or all of it if the
// iteration reached the end. The transaction conflicts with every write to the part that was read:
// a key that another transaction adds, changes or deletes. When the iteration reaches a key that
// was written since the transaction began, its last pair has ErrConflict.
//
// The loop may read and write through the transaction. It is unspecified whether the iteration
// shows keys that the loop writes ahead of it. Scan reads pages of at most 1024 keys and about 1
// MiB from the store.
func (tx *Tx) Scan(r Range) iter.Seq2[KeyValue, error] { return applicationKeys(tx).Scan(r) }

// Get is Tx.Get in the space.
func (k txSpaceKeys) Get(key []byte) (value []byte, found bool, err error) {
	if err := checkHostKey(key); err != nil {
		return nil, false, err
	}
	return k.state.get(k.prefix, key)
}

// Put is Tx.Put in the space.
func (k txSpaceKeys) Put(key, value []byte) error {
	if err := k.checkWrite(key); err != nil {
		return err
	}
	if len(value) > limits.ValueBytes {
		return &ArgumentError{"application value", fmt.Sprintf("has %d bytes, the cap is %d", len(value), limits.ValueBytes)}
	}
	return k.state.put(k.prefix, key, append([]byte{}, value...))
}

// Delete is Tx.Delete in the space.
func (k txSpaceKeys) Delete(key []byte) error {
	if err := k.checkWrite(key); err != nil {
		return err
	}
	return k.state.put(k.prefix, key, nil)
}

// Scan is Tx.Scan in the space.
func (k txSpaceKeys) Scan(r Range) iter.Seq2[KeyValue, error] {
	return func(yield func(KeyValue, error) bool) {
		if err := r.check(); err != nil {
			yield(KeyValue{}, err)
			return
		}
		k.state.scan(r.span(k.prefix), r.Limit, len(k.prefix), yield)
	}
}

// checkWrite returns an error for a key that cannot be written, or not by this owner.
func (k txSpaceKeys) checkWrite(key []byte) error {
	if err := checkHostKey(key); err != nil {
		return err
	}
	if len(k.prefix) > len(applicationSpace) {
		return nil // a key of the space
	}
	if prefix, owner, refuses := k.space.Refuses(key); refuses {
		return &ArgumentError{"application key", fmt.Sprintf("begins with %q: these keys belong to %s, choose another key", prefix, owner)}
	}
	return nil
}
