package engine

// putClaims are the claims put or removed by the group that is being decided and by the one before
// it, which the store may not show yet. Older groups are applied: the applier takes a group only
// when it is done with the one before. It is the committer's own.
type putClaims struct {
	now, before window
}

// A window holds the claims that one group puts or removes. A key that was put twice is found as it
// was put last: the window of its claim ended in between.
type window struct {
	keys   []byte // arena of the claims' keys
	claims []putClaim
	byHash map[uint64]int32 // index of the last claim with that hash
}

type putClaim struct {
	keyAt, keyEnd int
	before        int32  // index of the claim with the same hash before this one, -1 if there is none
	record        Record // zero if it is removed
}

// next begins a new group.
func (p *putClaims) next() {
	p.now, p.before = p.before, p.now
	w := &p.now
	if w.byHash == nil {
		w.byHash = make(map[uint64]int32)
	}
	clear(w.byHash)
	w.keys, w.claims = w.keys[:0], w.claims[:0]
}

// add notes that a claim is put; a zero record that it is removed.
func (p *putClaims) add(key []byte, hash uint64, r Record) { p.now.add(key, hash, r) }

// find returns the claim that one of the two groups puts under the key, a zero record if it removes
// it.
func (p *putClaims) find(key []byte, hash uint64) (Record, bool) {
	if r, found := p.now.find(key, hash); found {
		return r, true
	}
	return p.before.find(key, hash)
}

func (w *window) add(key []byte, hash uint64, r Record) {
	before, ok := w.byHash[hash]
	if !ok {
		before = -1
	}
	w.byHash[hash] = int32(len(w.claims))
	at := len(w.keys)
	w.keys = append(w.keys, key...)
	w.claims = append(w.claims, putClaim{at, len(w.keys), before, r})
}

func (w *window) find(key []byte, hash uint64) (Record, bool) {
	i, ok := w.byHash[hash]
	if !ok {
		return Record{}, false
	}
	for i >= 0 { // once, unless another key has the same 64-bit hash
		c := &w.claims[i]
		if string(w.keys[c.keyAt:c.keyEnd]) == string(key) {
			return c.record, true
		}
		i = c.before
	}
	return Record{}, false
}
