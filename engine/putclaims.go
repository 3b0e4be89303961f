package engine

import (
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
)

// putClaims are the claims put or removed by the group that is being decided and by the previous
// one, which the store may not show yet. Older groups are applied: the applier takes a group only
// after it has applied the previous one. Only the committer uses putClaims.
type putClaims struct {
	now, before groupClaims
}

// groupClaims are the claims that one group puts or removes: a hash table with linear probing. A
// key that was put more than once is found as it was last put. The group's batch refers to the
// bytes of arena; they are reused for the group after the next one, when this one is applied.
type groupClaims struct {
	since  uint64 // the last batch before the group
	arena  []byte // key and record of each claim
	claims []putClaim
	// The number of slots is a power of two, at least twice the number of claims. A slot has the
	// upper half of a claim's hash and its index + 1, or 0 if it is free.
	slots []uint64
}

type putClaim struct {
	hash     uint64
	slot     int
	key, end int // start of the key, end of the record
	record   int // start of the record, equal to end if the claim is removed
}

const minGroupSlots = 1 << 8

// next starts a new group after the given batch.
func (p *putClaims) next(since uint64) {
	p.now, p.before = p.before, p.now
	w := &p.now
	for i := range w.claims {
		w.slots[w.claims[i].slot] = 0
	}
	w.since, w.arena, w.claims = since, w.arena[:0], w.claims[:0]
}

// put records that a claim is put and returns the write for the batch. topic is the number of the
// record's topic.
func (p *putClaims) put(key []byte, hash uint64, r *ClaimRecord, topic uint64) storage.ClaimWrite {
	w := &p.now
	c := w.begin(key, hash)
	w.arena = appendRecord(w.arena, r, topic)
	return w.add(c)
}

// remove records that a claim is removed and returns the write for the batch.
func (p *putClaims) remove(key []byte, hash uint64) storage.ClaimWrite {
	return p.now.add(p.now.begin(key, hash))
}

// find returns the record that the two groups last put under the key, nil if they remove the claim.
func (p *putClaims) find(key []byte, hash uint64) (record []byte, put bool) {
	if record, put = p.now.find(key, hash); put {
		return record, put
	}
	return p.before.find(key, hash)
}

// prefetch loads the slots of claims into the processor's cache, so that the cache misses overlap.
func (p *putClaims) prefetch(claims []candidate) {
	p.now.prefetch(claims)
	p.before.prefetch(claims)
}

// has reports whether p has all claims that were put or removed after the given batch.
func (p *putClaims) has(after uint64) bool { return after >= p.before.since }

func (w *groupClaims) begin(key []byte, hash uint64) putClaim {
	c := putClaim{hash: hash, key: len(w.arena)}
	w.arena = append(w.arena, key...)
	c.record = len(w.arena)
	return c
}

// add adds a claim whose key and record are already in the arena.
func (w *groupClaims) add(c putClaim) storage.ClaimWrite {
	c.end = len(w.arena)
	if 2*(len(w.claims)+1) > len(w.slots) {
		w.grow()
	}
	c.slot = w.at(w.key(&c), c.hash)
	w.claims = append(w.claims, c)
	w.take(&c, len(w.claims))
	return storage.ClaimWrite{Key: w.key(&c), Record: w.record(&c)}
}

func (w *groupClaims) find(key []byte, hash uint64) (record []byte, put bool) {
	if len(w.claims) == 0 {
		return nil, false
	}
	i := w.slots[w.at(key, hash)]
	if i == 0 {
		return nil, false
	}
	return w.record(&w.claims[uint32(i)-1]), true
}

func (w *groupClaims) prefetch(claims []candidate) {
	if len(w.slots) == 0 {
		return
	}
	for i := range claims {
		atomic.LoadUint64(&w.slots[int(claims[i].place.hash)&(len(w.slots)-1)]) // atomic, so that the compiler keeps the load
	}
}

// at returns the slot of a key, or the free slot for it.
func (w *groupClaims) at(key []byte, hash uint64) int {
	mask := len(w.slots) - 1
	for i := int(hash) & mask; ; i = (i + 1) & mask {
		s := w.slots[i]
		if s == 0 || s>>32 == hash>>32 && string(w.key(&w.claims[uint32(s)-1])) == string(key) {
			return i
		}
	}
}

func (w *groupClaims) grow() {
	w.slots = make([]uint64, max(2*len(w.slots), minGroupSlots))
	for i := range w.claims {
		c := &w.claims[i]
		c.slot = w.at(w.key(c), c.hash)
		w.take(c, i+1)
	}
}

// take sets the slot of the n-th claim.
func (w *groupClaims) take(c *putClaim, n int) { w.slots[c.slot] = c.hash>>32<<32 | uint64(n) }

func (w *groupClaims) key(c *putClaim) []byte { return w.arena[c.key:c.record:c.record] }

func (w *groupClaims) record(c *putClaim) []byte {
	if c.record == c.end {
		return nil
	}
	return w.arena[c.record:c.end:c.end]
}
