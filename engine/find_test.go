package engine

import "testing"

func TestClaimsWithTheSameHashAreToldApart(t *testing.T) {
	g := newGroup()
	for i, key := range []string{"a", "b", "c"} {
		if _, ok := g.pending[7]; !ok {
			g.pending[7] = int32(i)
		}
		g.claims = append(g.claims, newClaim{key: key, hash: 7})
	}
	for i, key := range []string{"a", "b", "c"} {
		if n := g.find([]byte(key), 7); n != &g.claims[i] {
			t.Errorf("%q is found as %v", key, n)
		}
	}
	if n := g.find([]byte("d"), 7); n != nil {
		t.Errorf("a key that is not there is found as %v", n)
	}
	c := newRecent(2)
	c.add(g.claims[:1])
	if _, found := c.get(7, []byte("b")); found {
		t.Error("the cache takes a key for another one with its hash")
	}
	if _, found := c.get(7, []byte("a")); !found {
		t.Error("the cache misses what it has")
	}
}
