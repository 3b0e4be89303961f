package engine

import "testing"

func TestClaimsWithTheSameHashAreDistinguished(t *testing.T) {
	var p putClaims
	p.next(0)
	for i, key := range []string{"a", "b", "c"} {
		if i == 2 {
			p.next(0) // the previous group has put "a" and "b"
		}
		p.put([]byte(key), 7, &Record{State: Done, Generation: uint64(i)}, 0)
	}
	for i, key := range []string{"a", "b", "c"} {
		if r, found := p.find([]byte(key), 7); !found || generationOf(t, r) != uint64(i) {
			t.Errorf("%q is found as %x %v", key, r, found)
		}
	}
	if r, found := p.find([]byte("d"), 7); found {
		t.Errorf("an absent key is found as %v", r)
	}
	p.next(0)
	p.next(0)
	if r, found := p.find([]byte("a"), 7); found {
		t.Errorf("a claim of a group long applied is still held: %v", r)
	}
	c := newRecent(2)
	c.add([]foundClaim{{keyEnd: 1, hash: 7, record: Record{State: Done}}}, []byte("a"), 0)
	if _, found := c.get(7, []byte("b")); found {
		t.Error("the cache mistakes a key for another one with its hash")
	}
	if _, found := c.get(7, []byte("a")); !found {
		t.Error("the cache does not find a key that it has")
	}
}

func generationOf(t *testing.T, record []byte) uint64 {
	t.Helper()
	r, _, err := parseRecord(record)
	if err != nil {
		t.Error(err)
	}
	return r.Generation
}
