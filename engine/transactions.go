package engine

import (
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/weekbucket"
	"github.com/zeebo/xxh3"
)

// transactions is the state that open transactions share: which claims they hold, and which state
// keys were written while they were open.
//
// Conflicts are found by backward validation (Kung and Robinson, "On optimistic methods for
// concurrency control", 1981): a transaction reads the store as of its start, because a read of a
// key that was written since then fails; at commit it fails if any key it has read was written
// since. The committer validates and applies one after the other, so the order of commits is a
// serial order. Claims are read as of now: a Done claim changes only when it is withdrawn or its week
// is dropped, and is no read; a dead-lettered one that a transaction has seen is a read as of that moment.
type transactions struct {
	core    *core
	filters *filters.Set
	any     atomic.Bool // there are reservations, so that the lock is not taken when there are none

	mu      sync.Mutex // guards all below; no I/O and no waiting under it
	claims  reservations
	last    weekbucket.Week // of the last reservation, if claims is not empty
	open    map[*readSet]struct{}
	written recentWrites // of state keys and claims
	// the same writes in the order of the batches, for transactions that have read ranges
	log writeLog
	// transactions that began before this batch and have read keys conflict: written has dropped
	// some
	floor uint64
}

func (t *transactions) init(c *core, s *filters.Set) {
	t.core, t.filters = c, s
	t.open = make(map[*readSet]struct{})
	t.written.last = make(map[string]recentWrite)
}

// begin adds a transaction, which begins now.
func (t *transactions) begin(reads *readSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	reads.start = t.core.applied.at.Load()
	reads.since = reads.start
	t.open[reads] = struct{}{}
}

// restart sets the begin of a transaction that has waited and done nothing yet to now.
func (t *transactions) restart(reads *readSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	reads.start = t.core.applied.at.Load()
}

func (t *transactions) finish(reads *readSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, reads)
}

func (t *transactions) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

func (t *transactions) lockName(key []byte) lockName { return xxh3.Hash128Seed(key, t.core.seed) }

// prefetch loads the slots of reservations into the processor's cache: their cache misses overlap.
func (t *transactions) prefetch(expected []expected) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range expected {
		t.claims.prefetch(expected[i].candidate.lock)
	}
}

// reserve takes a claim for a transaction, as the one with the given index; free reports success.
// If the claim, or one in the places near, is taken, it returns that reservation. A claim that only
// other parts of the same transaction hold is not taken.
func (t *transactions) reserve(c *candidate, tx *txRequest, index int, near []place) (taken reservation, free bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(near) > 0 {
		if taken = t.taken(c, tx, near); taken.owner != nil {
			return taken, false
		}
	}
	if t.claims.n == 0 || c.place.week != t.last {
		t.noteWeek(c.place.week)
	}
	r := reservation{name: c.lock, owner: tx.claimant.owner, claim: int32(index)}
	if tx.claimant.isPart() {
		r = reservation{name: c.lock, owner: tx.claimant.owner, claim: noClaim, parts: 1}
	}
	switch taken = t.claims.add(r); {
	case taken.owner == nil:
	case tx.claimant.shares(taken):
		t.claims.update(c.lock, func(shared *reservation) {
			shared.claim = max(shared.claim, r.claim)
			shared.parts += r.parts
		})
	default:
		return taken, false
	}
	if tx.claimant.isPart() {
		tx.claimant.mine[c.lock] = index
	}
	if t.claims.n == 1 {
		t.any.Store(true)
	}
	return reservation{}, true
}

// noteWeek records that a claim in a week is about to be reserved, for filters.Set.WeeksBefore. t.mu is
// held.
func (t *transactions) noteWeek(week weekbucket.Week) {
	t.last = week
	t.filters.Reserve(week)
}

// taken returns the reservation of a candidate, or of one of the places near: the transaction's own
// before that of another, and the zero value if there is neither. t.mu is held.
func (t *transactions) taken(c *candidate, tx *txRequest, near []place) (taken reservation) {
	for i := -1; i < len(near); i++ {
		name := c.lock
		if i >= 0 {
			name = t.lockName(tx.claims.set.key(&near[i]))
		}
		switch r := t.claims.get(name); {
		case r.owner == nil, tx.claimant.shares(r):
		case r.owner == tx.claimant.owner:
			return r
		case taken.owner == nil:
			taken = r
		}
	}
	return taken
}

// unreserve removes a reservation that became no claim.
func (t *transactions) unreserve(c *candidate, by *claimant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(c.lock, by)
}

// release removes the reservations of claims.
func (t *transactions) release(claims []candidate, by *claimant) {
	if len(claims) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(claims) > 0 {
		some := claims[:min(askAhead, len(claims))]
		for i := range some {
			t.claims.prefetch(some[i].lock)
		}
		for i := range some {
			t.remove(some[i].lock, by)
		}
		claims = claims[len(some):]
	}
}

// remove removes a reservation. t.mu is held.
func (t *transactions) remove(name lockName, by *claimant) {
	t.claims.update(name, func(r *reservation) {
		if !by.isPart() {
			r.claim = noClaim
			return
		}
		r.parts--
		delete(by.mine, name)
	})
	if t.claims.n == 0 {
		t.any.Store(false)
		t.filters.ReleaseAll()
	}
}

// moveClaims moves claims of a part to its transaction, from the given index on.
func (t *transactions) moveClaims(claims []candidate, first int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range claims {
		t.claims.update(claims[i].lock, func(r *reservation) {
			r.claim = int32(first + i)
			r.parts--
		})
	}
}

// claimedSince reports whether a transaction has one of the claims, with an index from the given
// one on.
func (t *transactions) claimedSince(by *owner, names []lockName, from int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if r := t.claims.get(name); r.owner == by && int(r.claim) >= from {
			return true
		}
	}
	return false
}

// reserved reports whether an open transaction holds the key.
func (t *transactions) reserved(key []byte) bool {
	return t.any.Load() && t.holder(t.lockName(key)).owner != nil
}

// holder returns the holder of a claim; its owner is nil if there is none.
func (t *transactions) holder(name lockName) reservation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.claims.get(name)
}

// winner returns the batch of a committing transaction that holds the key of a candidate, or one
// near, 0 if there is none.
func (t *transactions) winner(r *claimSet, c *candidate) (seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.claims.get(c.lock).owner; o != nil {
		seq = o.won.Load()
	}
	near := r.nearOf(c)
	for i := range near {
		if o := t.claims.get(t.lockName(r.key(&near[i]))).owner; o != nil {
			seq = max(seq, o.won.Load())
		}
	}
	return seq
}

// changedSince returns the batch after start that may have written the key, 0 if there is none.
func (t *transactions) changedSince(key []byte, start uint64) (by uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if start < t.floor {
		return t.floor
	}
	if by = t.written.last[string(key)].seq; by <= start {
		return 0
	}
	return by
}

// latest returns the last write to a key if its value is known and visible to a transaction with
// that start. No transaction that was decided later writes the key.
func (t *transactions) latest(key []byte, start uint64) (w recentWrite, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w = t.written.last[string(key)]
	return w, w.known && w.seq <= start && start >= t.floor
}

// lastWrite returns the newest known batch that has written a key, 0 if it was dropped, and the
// batch up to which writes may be dropped that open transactions need. Dropped writes are applied.
func (t *transactions) lastWrite(key string) (seq, floor uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written.last[key].seq, t.floor
}

// changedIn returns the least key in the range that may have been written by a batch after start,
// and that batch, 0 if there is none.
func (t *transactions) changedIn(r keyRange, start uint64) (least string, by uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.log.changed(r, start)
}

// claimRead is the name under which the read of a claim is recorded, among those of state keys.
func claimRead(key []byte) string { return "c" + string(key) } // no state key begins with c (state.go)

// overtaken returns the batch with which a transaction conflicts, which has written a key that the
// transaction had read before. met is a batch that has written such a key since the transaction
// came to the queue, perhaps before it began. 0 is none.
func (t *transactions) overtaken(reads *readSet) (by, met uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(reads.keys) > 0 && reads.start < t.floor {
		return t.floor, t.floor
	}
	for key, at := range reads.keys {
		seq := t.written.last[key].seq
		if seq > at {
			return seq, seq
		}
		if seq > reads.since {
			met = max(met, seq)
		}
	}
	if seq := t.log.newest(reads.ranges, reads.start, reads.since); seq > reads.start {
		return seq, seq
	} else if seq > 0 {
		met = max(met, seq)
	}
	return 0, met
}

// wrote records the writes of a transaction, and the claims that it reopens, which go into batch
// seq. It is called before that batch is applied, so that code that reads the new value also finds
// the record.
func (t *transactions) wrote(r *txRequest, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range r.writes.latest {
		if w := &r.writes.list[i]; w.name[0] != stateProduced { // nothing reads it
			t.written.note(w.name, w.recent(seq))
			t.log.add(w.name, seq)
		}
	}
	for i := range r.claims.set.claims {
		if r.claims.set.claims[i].again {
			t.written.note(claimRead(r.claims.set.key(&r.claims.set.claims[i].place)), recentWrite{seq: seq})
		}
	}
	t.forgetSome()
}

// changed records, as wrote does, that batch seq removes a claim that was not Done.
func (t *transactions) changed(key []byte, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written.note(claimRead(key), recentWrite{seq: seq})
	t.forgetSome()
}

func (t *transactions) forgetSome() {
	if t.written.due() || t.log.full() {
		t.forget()
	}
}

// forget drops the records that no open transaction needs. Transactions that open later begin after
// the last applied batch. If the keys take too much memory, it also drops those that open
// transactions need, and raises the floor; the log has a limit and a floor of its own.
func (t *transactions) forget() {
	applied := t.core.applied.at.Load()
	needed := applied
	for reads := range t.open {
		needed = min(needed, reads.since)
	}
	t.log.forget(needed)
	if t.written.full() {
		t.floor, needed = applied, applied
	}
	t.written.forget(needed)
}
