package engine

import (
	"math/rand/v2"
	"testing"
)

func TestSavepointsAreValidUntilAnEarlierRollback(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var p savepoints
		var valid []bool // by serial, less one
		for range 60 {
			if len(valid) == 0 || rnd.IntN(3) > 0 {
				p.take()
				valid = append(valid, true)
			} else if to := uint64(rnd.IntN(len(valid)) + 1); valid[to-1] {
				p.invalidate(to)
				clear(valid[to:])
			}
			for i, want := range valid {
				if got := p.valid(uint64(i + 1)); got != want {
					t.Fatalf("savepoint %d of %d is valid: %v, with %v undone", i+1, len(valid), got, p.undone)
				}
			}
		}
		if len(p.undone) > 30 {
			t.Errorf("%d spans are kept for 60 steps", len(p.undone))
		}
	}
}
