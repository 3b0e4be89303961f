package occ

import (
	"sync"
	"sync/atomic"
)

// A History has the keys that were written while a transaction was open. It is safe for concurrent
// use.
//
// Conflicts are found by backward validation (Kung and Robinson, "On optimistic methods for
// concurrency control", 1981): a transaction reads the store as of its start, because a read of a
// key that was written since then fails; at commit it fails if any key it has read was written
// since. The caller validates and applies one after the other, so the order of commits is a serial
// order. A claim may be read as of a later moment than the start (Reads.NoteAsOf).
type History struct {
	applied *atomic.Uint64 // the last batch that reads see

	mu      sync.Mutex // guards all below; no I/O and no waiting under it
	open    map[*Reads]struct{}
	written recentWrites
	// the same writes in the order of the batches, for transactions that have read ranges
	log writeLog
	// transactions that began before this batch and have read keys conflict: written has dropped
	// some
	floor uint64
}

// Init makes h, which is zero, usable. applied is the last batch that reads of the store see.
func (h *History) Init(applied *atomic.Uint64) {
	h.applied, h.open = applied, make(map[*Reads]struct{})
	h.written.last = make(map[string]recentWrite)
}

// Begin adds a transaction, which begins now.
func (h *History) Begin(reads *Reads) {
	h.mu.Lock()
	defer h.mu.Unlock()
	reads.start = h.applied.Load()
	reads.since = reads.start
	h.open[reads] = struct{}{}
}

// Restart sets the begin of a transaction that has waited and done nothing yet to now.
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

// Open returns how many transactions are open.
func (h *History) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open)
}

// RecentBytes returns the counted memory of recent writes, at most about MaxRecentBytes.
func (h *History) RecentBytes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written.bytes
}

// ChangedSince returns the batch after the start of the reads that may have written the key, 0 if
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

// Latest returns the last value of a key, nil if it was removed, if that is known and visible to
// the reads. The caller must not change it. No batch that was decided later writes the key.
func (h *History) Latest(reads *Reads, key []byte) (value []byte, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.written.last[string(key)]
	return w.value, w.known && w.seq <= reads.start && reads.start >= h.floor
}

// LastWrite returns the newest known batch that has written a key, 0 if it was dropped, and the
// batch up to which writes may be dropped that open transactions need. Dropped writes are applied.
func (h *History) LastWrite(key string) (seq, floor uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.written.last[key].seq, h.floor
}

// ChangedIn returns the least key in the range that may have been written by a batch after the start
// of the reads, and that batch, 0 if there is none.
func (h *History) ChangedIn(reads *Reads, r Range) (least string, by uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.changed(r, reads.start)
}

// Overtaken returns the batch with which a transaction conflicts, which has written a key that the
// transaction had read before. met is a batch that has written such a key since the transaction
// came to the queue, perhaps before it began. 0 is none.
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

// A Write is a write of a batch to a key.
type Write struct {
	Key string
	// IsScanned says that scans may read the key, and IsKnown that transactions then read Value, nil
	// for no value, which must not be changed afterwards.
	IsScanned, IsKnown bool
	Value              []byte
}

// Add records the writes of batch seq. It must be called before that batch is applied, so that code
// that reads a new value also finds the record.
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

// forget drops the records that no open transaction needs. Transactions that open later begin after
// the last applied batch. If the keys take too much memory, it also drops those that open
// transactions need, and raises the floor; the log has a limit and a floor of its own.
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
