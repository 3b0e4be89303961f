package engine

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// claimCache is a cache of durable, final claims that were repeated, by the hash of their key. A
// hit compares the full key. A cached record equals the stored one, because a Done claim without a
// window never changes; it can only be forgotten. A claim is not added when it is made: most claims
// are never repeated, and adding each one costs more than the reads that it saves
// (docs/decisions/0001). When the cache is full, a claim is added only the second time that it is
// found in the store: most repeated claims are repeated once.
type claimCache struct {
	mu      sync.Mutex // guards the fields below; not held during I/O
	lru     *simplelru.LRU[uint64, cachedClaim]
	size    int
	once    []uint32 // upper halves of the hashes of claims found while the cache was full; nil before that
	forgets uint64   // number of forgotten claims
}

// A foundClaim is a claim that was found in the store. Its key is in the arena of its request.
type foundClaim struct {
	keyAt, keyEnd int
	hash          uint64
	record        ClaimRecord
}

type cachedClaim struct {
	key    string
	record ClaimRecord
}

// newClaimCache returns a cache of size claims, or nil if size is negative. A nil cache is empty.
func newClaimCache(size int) *claimCache {
	if size < 0 {
		return nil
	}
	lru, err := simplelru.NewLRU[uint64, cachedClaim](size, nil)
	if err != nil {
		panic(err) // size is positive
	}
	return &claimCache{lru: lru, size: size}
}

func (c *claimCache) get(hash uint64, key []byte) (ClaimRecord, bool) {
	if c == nil {
		return ClaimRecord{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.lru.Get(hash); ok && e.key == string(key) {
		return e.record, true
	}
	return ClaimRecord{}, false
}

// epoch returns the number of forgotten claims. A caller of add must read it before it reads the
// claims from the store.
func (c *claimCache) epoch() uint64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgets
}

// add adds claims that were found in the store and are durable, unless a claim was forgotten since
// epoch.
func (c *claimCache) add(found []foundClaim, arena []byte, epoch uint64) {
	if c == nil || len(found) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgets != epoch {
		return
	}
	for i := range found {
		f := &found[i]
		if !f.record.final() || f.record.Data != "" { // the cache is bounded in records, not in bytes
			continue
		}
		if c.lru.Len() == c.size && !c.foundBefore(f.hash) {
			continue
		}
		c.lru.Add(f.hash, cachedClaim{string(arena[f.keyAt:f.keyEnd]), f.record})
	}
}

// foundBefore records the hash and reports whether it was recorded before. It remembers about as
// many hashes as the cache has claims, and confuses two hashes only rarely.
func (c *claimCache) foundBefore(hash uint64) bool {
	if c.once == nil {
		c.once = make([]uint32, c.size)
	}
	note, part := &c.once[hash%uint64(c.size)], uint32(hash>>32)
	before := *note == part
	*note = part
	return before
}

// forget removes a claim. The releaser calls it when the removal is durable, before any caller gets
// an answer.
func (c *claimCache) forget(hash uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgets++
	c.lru.Remove(hash)
}
