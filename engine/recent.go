package engine

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// recent is a cache of claims that are durable, by the hash of their key. A hit compares the full key.
type recent struct {
	mu      sync.Mutex // guards all below; no I/O under it
	lru     *simplelru.LRU[uint64, recentClaim]
	forgets uint64 // how often a claim was forgotten
}

type recentClaim struct {
	key    string
	record Record
}

// newRecent returns a cache of size claims, or nil, on which all methods work, for none.
func newRecent(size int) *recent {
	if size < 0 {
		return nil
	}
	lru, err := simplelru.NewLRU[uint64, recentClaim](size, nil)
	if err != nil {
		panic(err) // size is positive
	}
	return &recent{lru: lru}
}

func (c *recent) get(hash uint64, key []byte) (Record, bool) {
	if c == nil {
		return Record{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.lru.Get(hash); ok && e.key == string(key) {
		return e.record, true
	}
	return Record{}, false
}

// add takes claims that became durable. Only the releaser calls it, in the order of the batches, so that a claim that
// was forgotten later is removed after it was added.
func (c *recent) add(claims []newClaim) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range claims {
		n := &claims[i]
		c.lru.Add(n.hash, recentClaim{n.key, n.record})
	}
}

// epoch and addFound take a claim that was found in the store: it is added only if nothing was forgotten since epoch
// was read, which is to be done before the store is asked.
func (c *recent) epoch() uint64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgets
}

func (c *recent) addFound(hash uint64, key []byte, r Record, epoch uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgets == epoch {
		c.lru.Add(hash, recentClaim{string(key), r})
	}
}

func (c *recent) forget(hash uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgets++
	c.lru.Remove(hash)
}
