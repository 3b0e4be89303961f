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
