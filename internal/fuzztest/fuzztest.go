// Package fuzztest has the checks that the fuzz targets of several packages share.
package fuzztest

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
)

// Frugal runs decode, and fails the test if it allocates far more than the input's size.
func Frugal(t *testing.T, input []byte, decode func()) {
	t.Helper()
	got, most := uint64(math.MaxUint64), uint64(1<<20+64*len(input))
	for try := 0; try < 10 && got > most; try++ { // other goroutines allocate too
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decode()
		runtime.ReadMemStats(&after)
		got = after.TotalAlloc - before.TotalAlloc
	}
	if got > most {
		t.Fatalf("%d bytes allocated for an input of %d", got, len(input))
	}
}

// Decodes checks that a decoder does not panic, allocates no more than its input justifies, does
// not change its input, and returns only the stated errors. If encode is not nil, it must turn the
// result of an accepted input into that input again.
func Decodes(t *testing.T, input []byte, stated []error, decode func() error, encode func() []byte) {
	t.Helper()
	var err error
	kept := bytes.Clone(input)
	Frugal(t, input, func() { err = decode() })
	switch {
	case !bytes.Equal(kept, input):
		t.Fatalf("the input was changed from %x to %x", kept, input)
	case err != nil && !slices.ContainsFunc(stated, func(s error) bool { return errors.Is(err, s) }):
		t.Fatalf("not one of the stated errors: %v", err)
	case err == nil && encode != nil && !bytes.Equal(encode(), input):
		t.Fatalf("%x is accepted, but would be written as %x", input, encode())
	}
}
