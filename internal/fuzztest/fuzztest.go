// Package fuzztest has the checks that the fuzz targets of several packages share.
package fuzztest

import (
	"math"
	"runtime"
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
