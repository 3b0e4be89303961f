package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Errors of Add, which an AddError wraps.
var (
	// ErrOverflow says that a sum does not fit into an int64. Nothing of the transaction was
	// applied.
	ErrOverflow = errors.New("hapax: the sum overflows int64: add less, or set the key anew with Put")

	// ErrNotInteger says that an Add met a value that is not an integer of 8 bytes. Nothing of the
	// transaction was applied.
	ErrNotInteger = errors.New("hapax: the value is not an integer of 8 bytes: add only to keys that were written by Add, or by Put with EncodeInt64")
)

// An AddError says to which key a transaction could not add. It wraps ErrOverflow or ErrNotInteger.
type AddError struct {
	Key []byte
	Err error
}

func (e *AddError) Error() string { return fmt.Sprintf("%v (key %q)", e.Err, e.Key) }

// Unwrap returns the cause.
func (e *AddError) Unwrap() error { return e.Err }

// int64Size is the length of a value that can be added to: an int64 in two's complement, big
// endian.
const int64Size = 8

// EncodeInt64 returns the value that Add keeps for n, for use with Put.
func EncodeInt64(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// DecodeInt64 returns the integer in a value. ErrNotInteger means that it has another length than 8
// bytes.
func DecodeInt64(value []byte) (int64, error) {
	if len(value) != int64Size {
		return 0, fmt.Errorf("%w: it has %d bytes", ErrNotInteger, len(value))
	}
	return int64(binary.BigEndian.Uint64(value)), nil
}

// Add adds delta to an application key; an absent key counts as 0, and exists afterwards, also if
// delta is 0. The value is an int64 in the form of EncodeInt64.
//
// Add does not read the key: the sum is made where the transaction commits, so that transactions
// that add to one key never conflict for that, whatever their order. A transaction that reads the
// key (Get, Scan) conflicts with every Add to it, as with any other write; so do not read a key
// that many transactions add to. Get after an Add returns the value of the store plus what the
// transaction has added, and is such a read.
//
// If the sum overflows, or the store has a value of another length, the whole transaction fails
// with an AddError, which names the key, and nothing of it is applied. Add itself returns that
// error where the transaction's own writes show it: the sum of its own deltas, or a delta after a
// Put. After a Delete of its own, Add counts from 0.
func (tx *Tx) Add(key []byte, delta int64) error { return tx.applicationKeys().Add(key, delta) }

// Add is Tx.Add in the space.
func (k TxKeySpace) Add(key []byte, delta int64) error {
	if err := checkHostKey(key); err != nil {
		return err
	}
	return k.tx.add(k.prefix, key, delta)
}

func (tx *Tx) add(prefix, key []byte, delta int64) error {
	if err := tx.lockWorking(); err != nil {
		return err
	}
	defer tx.mu.Unlock()
	before := tx.findWrite(prefix, key)
	var w txWrite
	if before >= 0 {
		var err error
		if w, err = tx.writes.list[before].plus(delta); err != nil {
			return err
		}
	} else {
		w = txWrite{StateWrite: storage.StateWrite{Key: bytes.Clone(tx.key)}, isSum: true, delta: delta}
	}
	tx.adds = true
	return tx.keepWrite(w, before)
}

// A txSum is what becomes of the Adds of a transaction to a key that it has not written otherwise
// before, while it commits.
type txSum struct {
	looked bool      // the store was asked before the transaction was handed over
	base   sumBefore // what it had
	asOf   uint64    // as of this batch, or a later one

	total int64 // base + delta, once the transaction is being admitted
}

// plus returns the write that an Add makes after w.
func (w *txWrite) plus(delta int64) (txWrite, error) {
	if w.isSum {
		total, err := addTo(w.Key, integer(w.delta), delta)
		return txWrite{StateWrite: storage.StateWrite{Key: w.Key}, isSum: true, delta: total}, err
	}
	total, err := addTo(w.Key, sumOf(w.Value, w.Value != nil), delta)
	return txWrite{StateWrite: storage.StateWrite{Key: w.Key, Value: EncodeInt64(total)}}, err
}

// resolve returns the value of a write on top of what the store has.
func (w *txWrite) resolve(stored []byte, found bool) ([]byte, error) {
	if !w.isSum {
		return w.Value, nil
	}
	total, err := addTo(w.Key, sumOf(stored, found), w.delta)
	if err != nil {
		return nil, err
	}
	return EncodeInt64(total), nil
}

// A sumBefore is what an Add adds to.
type sumBefore struct {
	n     int64
	other bool // the value is not an integer
}

func integer(n int64) sumBefore { return sumBefore{n: n} }

func sumOf(value []byte, found bool) sumBefore {
	if !found {
		return sumBefore{}
	}
	n, err := DecodeInt64(value)
	return sumBefore{n, err != nil}
}

func addTo(stateKey []byte, to sumBefore, delta int64) (int64, error) {
	switch {
	case to.other:
		return 0, &AddError{ownerKey(stateKey), ErrNotInteger}
	case delta > 0 && to.n > math.MaxInt64-delta, delta < 0 && to.n < math.MinInt64-delta:
		return 0, &AddError{ownerKey(stateKey), ErrOverflow}
	}
	return to.n + delta, nil
}

// ownerKey returns a copy of the key that the owner of its space gave.
func ownerKey(stateKey []byte) []byte {
	key := stateKey[1:]
	if stateKey[0] == stateSpace {
		_, key, _ = bytes.Cut(key, []byte{0})
	}
	return bytes.Clone(key)
}
