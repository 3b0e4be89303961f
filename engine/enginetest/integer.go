package enginetest

import (
	"errors"
	"math/big"

	"github.com/hapax-dev/hapax/engine"
)

// plus returns the value after delta was added to it.
func plus(value string, there bool, delta int64) (string, error) {
	n := new(big.Int)
	if there {
		i, err := engine.DecodeInt64([]byte(value))
		if err != nil {
			return "", &engine.AddError{}
		}
		n.SetInt64(i)
	}
	if n.Add(n, big.NewInt(delta)); !n.IsInt64() {
		return "", &engine.AddError{Overflow: true}
	}
	return string(engine.EncodeInt64(n.Int64())), nil
}

// sameError reports whether err is of the kind of want.
func sameError(err, want error) bool {
	a, isAdd := errors.AsType[*engine.AddError](err)
	b, wantAdd := errors.AsType[*engine.AddError](want)
	if isAdd != wantAdd || isAdd && a.Overflow != b.Overflow || errors.Is(err, engine.ErrConflict) != errors.Is(want, engine.ErrConflict) {
		return false
	}
	return (err == nil) == (want == nil)
}
