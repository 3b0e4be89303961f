package engine

// A claimIndex finds the claims of a transaction by their hash: the latest one with that hash, and from it, by
// candidate.before, those made before it.
type claimIndex struct {
	latest map[uint64]int32
	most   int // claims that were in it at once
}

// none ends a chain of claims that share a hash.
const none = -1

// maxKeptIndex is the number of claims beyond which an index is not kept for the next transaction: a map never shrinks.
const maxKeptIndex = 8192

// claimed returns the index of the claim that the transaction has made under the key.
func (r *request) claimed(key []byte, hash uint64) (i int, ok bool) {
	at, ok := r.index.latest[hash]
	for ; ok && at != none; at = r.claims[at].before {
		if string(r.key(&r.claims[at].place)) == string(key) {
			return int(at), true
		}
	}
	return 0, false
}

// add notes the claim that comes next, as the i-th.
func (x *claimIndex) add(c *candidate, i int) {
	if x.latest == nil {
		x.latest = make(map[uint64]int32)
	}
	c.before = none
	if before, ok := x.latest[c.hash]; ok {
		c.before = before
	}
	x.latest[c.hash] = int32(i)
	x.most = max(x.most, len(x.latest))
}

// remove takes the claim out that was added last.
func (x *claimIndex) remove(c *candidate) {
	if c.before == none {
		delete(x.latest, c.hash)
	} else {
		x.latest[c.hash] = c.before
	}
}

func (x *claimIndex) reset() {
	if x.most > maxKeptIndex {
		x.latest = nil
	}
	x.most = 0
	clear(x.latest)
}
