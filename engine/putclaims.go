package engine

import (
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/storage"
)

// putClaims are the claims put or removed by the group that is being decided and by the previous
// one, which the store may not show yet. Older groups are applied: the applier takes a group only
// when it is done with the previous one. Only the committer uses it.
type putClaims struct {
	now, before groupClaims
}

// groupClaims are the claims that one group puts or removes: a table with linear probing, by the
// hashes that the claims already have. A key that was put twice is found as it was last put: the
// time for which its claim lasts (Event.Window) ended in between. The group's batch refers to these
// bytes; they are reused for the group after the next one, when this one is applied.
type groupClaims struct {
	since  uint64 // the last batch before the group
	arena  []byte // key and record of each claim
	claims []putClaim
	// A power of two of them, at most half of them taken: the upper half of a claim's hash, then its
	// index + 1; 0 for a free one.
	slots []uint64
}

type putClaim struct {
	hash     uint64
	slot     int
	key, end int // where the key begins, and where the record ends
	record   int // where the record begins, end if the claim is removed
}

const minGroupSlots = 1 << 8

// next begins a new group, after the given batch.
func (p *putClaims) next(since uint64) {
	p.now, p.before = p.before, p.now
	w := &p.now
	for i := range w.claims {
		w.slots[w.claims[i].slot] = 0
	}
	w.since, w.arena, w.claims = since, w.arena[:0], w.claims[:0]
}

// put records that a claim is put, with the given number of its topic, and returns the write for
// the batch.
func (p *putClaims) put(key []byte, hash uint64, r *ClaimRecord, topic uint64) storage.ClaimWrite {
	w := &p.now
	c := w.begin(key, hash)
	w.arena = appendRecord(w.arena, r, topic)
	return w.add(c)
}

// remove records that a claim is removed, and returns the write for the batch.
func (p *putClaims) remove(key []byte, hash uint64) storage.ClaimWrite {
	return p.now.add(p.now.begin(key, hash))
}

// find returns the record that one of the two groups puts under the key, nil if it removes the
// claim.
func (p *putClaims) find(key []byte, hash uint64) (record []byte, put bool) {
	if record, put = p.now.find(key, hash); put {
		return record, put
	}
	return p.before.find(key, hash)
}

// prefetch loads the slots of claims into the processor's cache: their cache misses overlap.
func (p *putClaims) prefetch(claims []candidate) {
	p.now.prefetch(claims)
	p.before.prefetch(claims)
}

// has reports whether all claims that were put or removed after the given batch are in it.
func (p *putClaims) has(after uint64) bool { return after >= p.before.since }

func (w *groupClaims) begin(key []byte, hash uint64) putClaim {
	c := putClaim{hash: hash, key: len(w.arena)}
	w.arena = append(w.arena, key...)
	c.record = len(w.arena)
	return c
}

// add adds a claim whose key and record are in the arena.
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
		atomic.LoadUint64(&w.slots[int(claims[i].place.hash)&(len(w.slots)-1)]) // the compiler does not remove it
	}
}

// at returns the slot of a key, or the free one in which it would be.
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

// take makes the n-th claim that of its slot.
func (w *groupClaims) take(c *putClaim, n int) { w.slots[c.slot] = c.hash>>32<<32 | uint64(n) }

func (w *groupClaims) key(c *putClaim) []byte { return w.arena[c.key:c.record:c.record] }

func (w *groupClaims) record(c *putClaim) []byte {
	if c.record == c.end {
		return nil
	}
	return w.arena[c.record:c.end:c.end]
}
