package engine

import (
	"fmt"
	"testing"
)

// Keys that share a hash do not occur in a test by themselves: here all of them do.
func TestClaimsThatShareAHash(t *testing.T) {
	var r request
	const hash, n = 7, 5
	key := func(i int) []byte { return fmt.Appendf(nil, "key %d", i) }
	for i := range n {
		c := candidate{place: place{hash: hash, keyAt: len(r.arena)}}
		r.arena = append(r.arena, key(i)...)
		c.keyEnd = len(r.arena)
		r.index.add(&c, len(r.claims))
		r.claims = append(r.claims, c)
	}
	for left := n; left >= 0; left-- {
		for i := range n {
			at, ok := r.claimed(key(i), hash)
			if ok != (i < left) || ok && at != i {
				t.Errorf("with %d claims left, claim %d is found at %d: %v", left, i, at, ok)
			}
		}
		if _, ok := r.claimed(key(0), hash+1); ok {
			t.Error("a claim is found under another hash")
		}
		if left > 0 {
			r.index.remove(&r.claims[left-1])
			r.claims = r.claims[:left-1]
		}
	}
	if len(r.index.latest) != 0 {
		t.Errorf("%d hashes are left of no claims", len(r.index.latest))
	}
}

// A transaction that was rolled back has taken its claims out again, and the map is as large as ever.
func TestALargeIndexIsNotKept(t *testing.T) {
	for n, kept := range map[int]bool{maxKeptIndex: true, maxKeptIndex + 1: false} {
		for _, rolledBack := range []bool{false, true} {
			var x claimIndex
			claims := make([]candidate, n)
			for i := range claims {
				claims[i].hash = uint64(i)
				x.add(&claims[i], i)
			}
			for i := n - 1; rolledBack && i >= 0; i-- {
				x.remove(&claims[i])
			}
			if x.reset(); (x.latest != nil) != kept || len(x.latest) > 0 {
				t.Errorf("of %d claims, rolled back: %v, the index is kept: %v, with %d", n, rolledBack, x.latest != nil, len(x.latest))
			}
		}
	}
}
