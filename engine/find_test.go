package engine

import (
	"encoding/binary"
	"testing"

	"github.com/zeebo/xxh3"
)

func TestClaimsWithTheSameHashAreDistinguished(t *testing.T) {
	var p putClaims
	p.next(0)
	for i, key := range []string{"a", "b", "c"} {
		if i == 2 {
			p.next(0) // the previous group has put "a" and "b"
		}
		p.put([]byte(key), 7, &ClaimRecord{State: Done, Generation: uint64(i)}, 0)
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
	c := newClaimCache(2)
	c.add([]foundClaim{{keyEnd: 1, hash: 7, record: ClaimRecord{State: Done}}}, []byte("a"), 0)
	if _, found := c.get(7, []byte("b")); found {
		t.Error("the cache mistakes a key for another one with its hash")
	}
	if _, found := c.get(7, []byte("a")); !found {
		t.Error("the cache does not find a key that it has")
	}
}

// A cache that is full keeps its claims when others are found once, however many these are.
func TestFullCacheTakesClaimsThatAreFoundTwice(t *testing.T) {
	const size, others = 100, 10_000
	c := newClaimCache(size)
	hash := func(i uint64) uint64 { return xxh3.Hash(binary.BigEndian.AppendUint64(nil, i)) }
	find := func(i uint64) {
		c.add([]foundClaim{{keyEnd: 1, hash: hash(i), record: ClaimRecord{State: Done}}}, []byte("a"), 0)
	}
	has := func(i uint64) bool {
		_, found := c.get(hash(i), []byte("a"))
		return found
	}
	for i := range uint64(size) {
		find(i)
	}
	for i := range uint64(others) {
		find(size + i)
	}
	for i := range uint64(size) {
		if !has(i) {
			t.Fatalf("claim %d was displaced by one that was found once", i)
		}
	}
	for range 2 {
		find(size + others)
	}
	if !has(size+others) || c.lru.Len() != size {
		t.Errorf("a claim that was found twice is in the cache: %v, of %d claims", has(size+others), c.lru.Len())
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

func TestAClaimThatWasPutTwiceInAGroupIsFoundAsItWasPutLast(t *testing.T) {
	var p putClaims
	p.next(0)
	key, other := []byte("a"), []byte("b")
	p.put(key, 1, &ClaimRecord{State: Done, Generation: 1}, 0)
	p.put(other, 1, &ClaimRecord{State: Done, Generation: 7}, 0) // another key with the same hash
	p.put(key, 1, &ClaimRecord{State: Done, Generation: 2}, 0)
	for range 2 {
		if r, found := p.find(key, 1); !found || generationOf(t, r) != 2 {
			t.Errorf("found %x, %v", r, found)
		}
		if r, found := p.find(other, 1); !found || generationOf(t, r) != 7 {
			t.Errorf("found %x, %v", r, found)
		}
		if _, found := p.find([]byte("c"), 1); found {
			t.Error("found a key that was not put")
		}
		p.next(0)
	}
}
