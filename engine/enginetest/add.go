package enginetest

import (
	"errors"
	"math"
	"math/big"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

// modelValues are the values that transactions put: some of them can be added to.
var modelValues = []string{"", "1", string(engine.EncodeInt64(2)), string(engine.EncodeInt64(math.MaxInt64))}

// add adds to a key.
func (m *model) add(t *rapid.T, tx *engine.Tx, x *modelTx, key string) {
	delta := rapid.SampledFrom([]int64{0, 1, 1, -1, -1, math.MaxInt64, math.MinInt64}).Draw(t, "delta")
	sum, added := x.adds[key]
	own, written := x.host[key]
	var value string
	var want error
	switch {
	case x.lost:
		want = engine.ErrConflict
	case written && own == nil:
		value, want = plus("", false, delta)
	case written:
		value, want = plus(*own, true, delta)
	default:
		value, want = plus(string(engine.EncodeInt64(sum)), added, delta)
	}
	if err := tx.Add([]byte(key), delta); !sameError(err, want) {
		m.Fatalf("adding %d to %q: %v, want %v", delta, key, err, want)
	}
	switch {
	case want != nil:
	case written:
		x.host[key] = &value
	default:
		x.adds[key], _ = engine.DecodeInt64([]byte(value))
	}
}

// seen returns what a key holds after a transaction's own writes and sums.
func (m *model) seen(x *modelTx, key string) (value string, there bool, err error) {
	if own, ok := x.host[key]; ok {
		if own == nil {
			return "", false, nil
		}
		return *own, true, nil
	}
	value, there = m.told.host[key]
	if delta, ok := x.adds[key]; ok {
		value, err = plus(value, there, delta)
		there = err == nil
	}
	return value, there, err
}

// plus returns the value after delta was added to it.
func plus(value string, there bool, delta int64) (string, error) {
	n := new(big.Int)
	if there {
		i, err := engine.DecodeInt64([]byte(value))
		if err != nil {
			return "", engine.ErrNotInteger
		}
		n.SetInt64(i)
	}
	if n.Add(n, big.NewInt(delta)); !n.IsInt64() {
		return "", engine.ErrOverflow
	}
	return string(engine.EncodeInt64(n.Int64())), nil
}

// sameError reports whether err is of the kind of want.
func sameError(err, want error) bool {
	for _, kind := range []error{engine.ErrConflict, engine.ErrOverflow, engine.ErrNotInteger} {
		if errors.Is(err, kind) != errors.Is(want, kind) {
			return false
		}
	}
	return (err == nil) == (want == nil)
}
