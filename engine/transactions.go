package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// transactions is what open transactions know of one another: which claims they hold, and which state keys were
// written while they were open.
//
// Conflicts are found by backward validation (Kung and Robinson, "On optimistic methods for concurrency control",
// 1981): a transaction reads the store as of its start, because a read of a key that was written since then fails; at
// commit it loses if any key it has read was written since. The committer validates and applies one after the other,
// so the order of commits is a serial order. Claims are read as of now: one that is Done stays as it is, and a
// dead-lettered one that a transaction was told of is a read as of that moment.
type transactions struct {
	engine *Engine
	any    atomic.Bool // there are reservations, so that nobody takes the lock when there are none

	mu      sync.Mutex // guards all below; no I/O and no waiting under it
	claims  reservations
	open    map[*Tx]struct{}
	written map[string]uint64 // state or claim key to seq of the batch that wrote it last, as far as an open transaction needs
	prune   int               // size of written at which it is pruned
	floor   uint64            // transactions that began before this batch have lost: what was written since is forgotten
}

// maxWritten caps the memory for writes beside a transaction that stays open: beyond it that transaction loses.
const maxWritten = 1 << 20

func (t *transactions) init(e *Engine) {
	t.engine = e
	t.open = make(map[*Tx]struct{})
	t.written = make(map[string]uint64)
	t.prune = 1024
}

func (t *transactions) begin(ctx context.Context, e *Engine) *Tx {
	tx := &Tx{
		e: e, ctx: ctx, live: true, req: e.newRequest(),
		latest: make(map[string]int), reads: make(map[string]uint64),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	tx.start = e.applied.at.Load()
	t.open[tx] = struct{}{}
	return tx
}

func (t *transactions) finish(tx *Tx) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, tx)
}

func (t *transactions) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

func (t *transactions) lockName(key []byte) lockName { return xxh3.Hash128Seed(key, t.engine.seed) }

// reserve takes a claim for tx, as the one with the given index: free says so. If it is taken, or a claim in one of the places
// near is, it returns that reservation.
func (t *transactions) reserve(c *candidate, tx *Tx, index int, near []place) (taken reservation, free bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(near) > 0 {
		taken = t.claims.get(c.lock)
	}
	for i := 0; i < len(near) && taken.tx != tx; i++ { // its own comes before those of others
		if r := t.claims.get(t.lockName(tx.req.key(&near[i]))); taken.tx == nil || r.tx == tx {
			taken = r
		}
	}
	if taken.tx == nil {
		taken = t.claims.add(reservation{c.lock, tx, index})
	}
	if taken.tx != nil {
		return taken, false
	}
	if t.claims.n == 1 {
		t.any.Store(true)
	}
	return reservation{}, true
}

// unreserve takes a reservation back that became no claim.
func (t *transactions) unreserve(c *candidate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(c.lock)
}

// release gives back the reservations of a transaction's claims, from the given one on.
func (t *transactions) release(r *request, from int) {
	claims := r.claims[from:]
	if len(claims) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range claims {
		t.remove(claims[i].lock)
	}
}

// remove takes a reservation back. t.mu is held.
func (t *transactions) remove(name lockName) {
	if t.claims.remove(name); t.claims.n == 0 {
		t.any.Store(false)
	}
}

// reserved reports whether an open transaction holds the key.
func (t *transactions) reserved(key []byte) bool {
	return t.any.Load() && t.holder(t.lockName(key)).tx != nil
}

// holder returns who holds a claim; its tx is nil if nobody does.
func (t *transactions) holder(name lockName) reservation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.claims.get(name)
}

// winner returns the batch of a committing transaction that holds the key of a candidate, or one near, 0 if there is none.
func (t *transactions) winner(r *request, c *candidate) (seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tx := t.claims.get(c.lock).tx; tx != nil {
		seq = tx.won.Load()
	}
	near := r.nearOf(c)
	for i := range near {
		if tx := t.claims.get(t.lockName(r.key(&near[i]))).tx; tx != nil {
			seq = max(seq, tx.won.Load())
		}
	}
	return seq
}

// changedSince reports whether the key may have been written by a batch after start.
func (t *transactions) changedSince(key []byte, start uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return start < t.floor || t.written[string(key)] > start
}

// claimRead is the name under which the read of a claim is noted, among those of state keys.
func claimRead(key []byte) string { return "c" + string(key) } // no state key begins with c (state.go)

// lost reports whether something that tx has read was written since it began.
func (t *transactions) lost(tx *Tx) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(tx.reads) > 0 && tx.start < t.floor {
		return true
	}
	for key, at := range tx.reads {
		if t.written[key] > at {
			return true
		}
	}
	return false
}

// wrote notes the writes of tx, and the claims that it opens again, which go into batch seq. It is called before that batch is applied, so that whoever
// reads the new value also finds the note.
func (t *transactions) wrote(tx *Tx, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range tx.latest {
		t.written[key] = seq
	}
	for i := range tx.req.records {
		if tx.req.records[i].reopened() {
			t.written[claimRead(tx.req.key(&tx.req.claims[i].place))] = seq
		}
	}
	t.forgetSome()
}

// changed notes that batch seq removes a claim that was not Done, as wrote does.
func (t *transactions) changed(key []byte, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written[claimRead(key)] = seq
	t.forgetSome()
}

func (t *transactions) forgetSome() {
	if len(t.written) >= t.prune {
		t.forget()
	}
}

// forget drops the notes that no open transaction needs. Transactions that open later begin after the last applied
// batch.
func (t *transactions) forget() {
	from := t.engine.applied.at.Load()
	if len(t.written) < maxWritten {
		for tx := range t.open {
			from = min(from, tx.start)
		}
	} else {
		t.floor = from
	}
	for key, seq := range t.written {
		if seq <= from {
			delete(t.written, key)
		}
	}
	t.prune = max(1024, 2*len(t.written))
}
