package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
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
