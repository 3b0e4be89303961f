package engine

// maxRecentWriteBytes is the maximum memory of keys that were written while a transaction is open,
// each counted with 64 bytes more. Transactions that began before it was reached, and have read
// anything, return ErrConflict.
const maxRecentWriteBytes = 64 << 20

// keyOverhead estimates the memory of a key in a map in addition to its bytes.
const keyOverhead = 64

// recentWrites records the last batch that wrote each key, as far as an open transaction needs it.
type recentWrites struct {
	seqs   map[string]uint64
	newest uint64 // batch in it
	bytes  int    // of the keys, with keyOverhead for each
	prune  int    // the size at which keys are next dropped
}

// note records that a batch writes the key.
func (w *recentWrites) note(key string, seq uint64) {
	if _, known := w.seqs[key]; !known {
		w.bytes += len(key) + keyOverhead
	}
	w.seqs[key] = seq
	w.newest = max(w.newest, seq)
}

// due reports whether it is time to drop unneeded keys.
func (w *recentWrites) due() bool { return w.bytes >= w.prune }

// full reports whether needed keys must be dropped too.
func (w *recentWrites) full() bool { return w.bytes >= maxRecentWriteBytes }

// forget drops all keys whose last write is not after the given batch.
func (w *recentWrites) forget(upTo uint64) {
	if upTo >= w.newest {
		clear(w.seqs)
		w.bytes = 0
	}
	for key, seq := range w.seqs {
		if seq <= upTo {
			delete(w.seqs, key)
			w.bytes -= len(key) + keyOverhead
		}
	}
	w.prune = w.bytes + min(max(w.bytes, 64<<10), maxRecentWriteBytes/8)
}
