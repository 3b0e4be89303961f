package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// An AddError names the key to which a transaction could not add: the sum does not fit into an
// int64, or the value is not an integer of 8 bytes. Nothing of the transaction was applied.
type AddError struct {
	Key      []byte
	Overflow bool // of the sum; otherwise, the value is not an integer
}

func (e *AddError) Error() string {
	cause := "the value is not an integer of 8 bytes: add only to keys that were written by Add, or by Put with EncodeInt64"
	if e.Overflow {
		cause = "the sum overflows int64: add less, or set the key anew with Put"
	}
	return "hapax: " + cause // without the key, which may come from an untrusted source
}

// int64Size is the length of an integer value: an int64 in two's complement, big endian.
const int64Size = 8

// EncodeInt64 returns the value that Add stores for n, for use with Put.
func EncodeInt64(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// DecodeInt64 returns the integer in a value. It returns an ArgumentError if the value does not
// have 8 bytes.
func DecodeInt64(value []byte) (int64, error) {
	if len(value) != int64Size {
		return 0, &ArgumentError{"integer value", fmt.Sprintf("has %d bytes, not %d: decode only values that were written by Add, or by Put with EncodeInt64", len(value), int64Size)}
	}
	return int64(binary.BigEndian.Uint64(value)), nil
}

// A sumBefore is the value before an Add.
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
		return 0, &AddError{Key: ownerKey(stateKey)}
	case delta > 0 && to.n > math.MaxInt64-delta, delta < 0 && to.n < math.MinInt64-delta:
		return 0, &AddError{Key: ownerKey(stateKey), Overflow: true}
	}
	return to.n + delta, nil
}

// ownerKey returns a copy of the key without the prefix of its space.
func ownerKey(stateKey []byte) []byte {
	key := stateKey[1:]
	if stateKey[0] == stateSpace {
		_, key, _ = bytes.Cut(key, []byte{0})
	}
	return bytes.Clone(key)
}
