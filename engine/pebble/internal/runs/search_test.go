package runs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// fuzzTable returns a table of a list without a file: its keys are in has.
func fuzzTable(rng *rand.Rand, pool [][]byte, from, to int, exclusive bool) *table {
	t := &table{smallest: pool[from], largest: pool[to], exclusive: exclusive}
	if rng.IntN(2) == 0 {
		t.filter.bits = make([]byte, 64)
	}
	return t
}

// Whatever the tables are, a search returns all tables that may have the key, in their order, or says
// that it is not absent.
func TestSearchFindsAllTablesThatCoverAKey(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rng(seed)
		n := 2 + rng.IntN(30)
		var pool [][]byte
		for i := range n {
			pool = append(pool, fmt.Appendf(nil, "c%03d", i*2))
		}
		l := &list{coverage: coverage{loaded: true}}
		for range 1 + rng.IntN(6) {
			var g group
			for at := rng.IntN(3); at < n; {
				to := at + rng.IntN(min(4, n-at))
				excl := to > at && rng.IntN(3) == 0
				g = append(g, fuzzTable(rng, pool, at, to, excl))
				at = to + rng.IntN(3)
				if !excl {
					at = max(at, to+1)
				}
			}
			if len(g) > 0 {
				l.groups = append(l.groups, g)
			}
		}
		l.divide()
		for i := range 2*n + 2 {
			for _, key := range [][]byte{fmt.Appendf(nil, "c%03d", i), fmt.Appendf(nil, "c%03d\x00", i)} {
				var want, got []*table
				for _, g := range l.groups {
					for _, t := range g {
						if t.covers(key) {
							want = append(want, t)
						}
					}
				}
				groups, absent := l.search(key)
				for _, g := range groups {
					if t := g.find(key); t != nil && t.covers(key) {
						got = append(got, t)
					}
				}
				if !absent || !slices.Equal(got, want) {
					t.Fatalf("seed %d, key %q: %d tables, want %d; absent %v", seed, key, len(got), len(want), absent)
				}
			}
		}
	}
}
