package occ

import (
	"sync"
	"sync/atomic"
)

// A History has the keys that were written while transactions were open. It is safe for concurrent
// use.
//
// Conflicts are found by backward validation (Kung and Robinson, "On optimistic methods for
// concurrency control", 1981): a transaction reads the store as of its start, because a read of a
// key that was written since then fails; the commit fails if a key that the transaction has read
// was written since. The caller validates and applies transactions one after the other, so the
// order of commits is a serial order. A claim may be read as of a later batch than the start
// (Reads.NoteAsOf).
type History struct {
	applied *atomic.Uint64 // last batch that reads see

	mu      sync.Mutex // guards the fields below; not held during I/O or waits
	open    map[*Reads]struct{}
	written recentWrites
	// the writes in the order of batches, for transactions that have read ranges
	log writeLog
	// floor is the batch up to which written has dropped writes: transactions that began earlier
	// and have read keys conflict
	floor uint64
}

// Init initializes h, which must be zero. applied is the last batch that reads of the store see.
func (h *History) Init(applied *atomic.Uint64) {
	h.applied, h.open = applied, make(map[*Reads]struct{})
	h.written.last = make(map[string]recentWrite)
}

// Begin adds a transaction that begins now.
func (h *History) Begin(reads *Reads) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reads.start = h.applied.Load()
	reads.since = reads.start
	h.open[reads] = struct{}{}
}

// Restart sets the start of a transaction that has only waited to now.
func (h *History) Restart(reads *Reads) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reads.start = h.applied.Load()
}

// End removes a transaction.
func (h *History) End(reads *Reads) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, reads)
}

// Open returns the number of open transactions.
func (h *History) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open)
}

// RecentBytes returns the estimated memory of recent writes, at most about MaxRecentBytes.
func (h *History) RecentBytes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written.bytes
}

// ChangedSince returns a batch after the start of the reads that may have written the key, 0 if
// there is none.
func (h *History) ChangedSince(reads *Reads, key []byte) (by uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reads.start < h.floor {
		return h.floor
	}
	if by = h.written.last[string(key)].seq; by <= reads.start {
		return 0
	}
	return by
}

// Latest returns the last value of a key, nil if the key was removed. ok is false if the value is
// unknown or not visible to the reads. No later decided batch writes the key. The caller must not
// change the value.
func (h *History) Latest(reads *Reads, key []byte) (value []byte, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.written.last[string(key)]
	return w.value, w.known && w.seq <= reads.start && reads.start >= h.floor
}

// LastWrite returns the last known batch that has written a key, 0 if it was dropped, and the
// floor, up to which writes may have been dropped although open transactions need them. Dropped
// writes are applied.
func (h *History) LastWrite(key string) (seq, floor uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written.last[key].seq, h.floor
}

// ChangedIn returns the least key in the range that a batch after the start of the reads may have
// written, and that batch, 0 if there is none.
func (h *History) ChangedIn(reads *Reads, r Range) (least string, by uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.changed(r, reads.start)
}

// Overtaken returns a batch that has written a key after the transaction had read it, so that the
// transaction conflicts with the batch, or 0. met is a batch that has written such a key since the
// transaction was queued, perhaps before it began, or 0.
func (h *History) Overtaken(reads *Reads) (by, met uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(reads.keys) > 0 && reads.start < h.floor {
		return h.floor, h.floor
	}
	for key, at := range reads.keys {
		seq := h.written.last[key].seq
		if seq > at {
			return seq, seq
		}
		if seq > reads.since {
			met = max(met, seq)
		}
	}
	if seq := h.log.newest(reads.ranges, reads.start, reads.since); seq > reads.start {
		return seq, seq
	} else if seq > 0 {
		met = max(met, seq)
	}
	return 0, met
}

// OvertakenKey returns the least key because of which a transaction conflicts, "" if none is known.
func (h *History) OvertakenKey(reads *Reads) (least string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, at := range reads.keys {
		if h.written.last[key].seq > at && (least == "" || key < least) {
			least = key
		}
	}
	if reads.start < h.log.floor {
		return least
	}
	for _, r := range reads.ranges {
		if key, by := h.log.changed(r, reads.start); by > 0 && (least == "" || key < least) {
			least = key
		}
	}
	return least
}

// A Write is a write of a batch to a key.
type Write struct {
	Key string
	// IsScanned means that scans may read the key, IsKnown that its new value is Value, where nil
	// means removed. Value must not be changed afterwards.
	IsScanned, IsKnown bool
	Value              []byte
}

// Add records the writes of batch seq. It must be called before the batch is applied, so that a
// reader of a new value also finds its record.
func (h *History) Add(seq uint64, writes ...Write) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		last := recentWrite{seq: seq}
		if w.IsKnown && len(w.Value) <= maxRecentValue {
			last.known, last.value = true, w.Value
		}
		h.written.note(w.Key, last)
		if w.IsScanned {
			h.log.add(w.Key, seq)
		}
	}
	if h.written.due() || h.log.full() {
		h.forget()
	}
}

// forget drops the records that no open transaction needs. Later transactions start at or after the
// last applied batch. If the keys use too much memory, forget also drops those that open
// transactions need, and raises the floor. The log has its own limit and floor.
func (h *History) forget() {
	applied := h.applied.Load()
	needed := applied
	for reads := range h.open {
		needed = min(needed, reads.since)
	}
	h.log.forget(needed)
	if h.written.full() {
		h.floor, needed = applied, applied
	}
	h.written.forget(needed)
}
