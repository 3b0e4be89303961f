package occ

// MaxRecentBytes is the maximum memory of keys that were written while a transaction is open, each
// counted with 64 bytes more, and of their small values. Transactions that began before it was
// reached, and have read anything, conflict.
const MaxRecentBytes = 64 << 20

// keyOverhead estimates the memory of a key in a map in addition to its bytes.
const keyOverhead = 64

// maxRecentValue is the maximum size of a value that is kept with its key, so that the store is not
// read for it. minRecentBytes are kept even if no open transaction needs them, for the same reason.
const (
	maxRecentValue = 64
	minRecentBytes = 256 << 10
)

// recentWrites records the last batch that wrote each key, as far as an open transaction needs it.
type recentWrites struct {
	last   map[string]recentWrite
	newest uint64 // batch in it
	bytes  int    // of the keys and values, with keyOverhead for each key
	prune  int    // the size at which keys are next dropped
}

// A recentWrite is the last write to a key.
type recentWrite struct {
	seq   uint64
	known bool   // value is the one that was written
	value []byte // nil if the key was removed; not changed any more
}

// note records that a batch writes the key.
func (w *recentWrites) note(key string, r recentWrite) {
	if old, noted := w.last[key]; noted {
		w.bytes -= len(old.value)
	} else {
		w.bytes += len(key) + keyOverhead
	}
	w.bytes += len(r.value)
	w.last[key] = r
	w.newest = max(w.newest, r.seq)
}

// due reports whether it is time to drop unneeded keys.
func (w *recentWrites) due() bool { return w.bytes >= w.prune }

// full reports whether needed keys must be dropped too.
func (w *recentWrites) full() bool { return w.bytes >= MaxRecentBytes }

// forget drops all keys whose last write is not after the given batch.
func (w *recentWrites) forget(upTo uint64) {
	if upTo >= w.newest {
		clear(w.last)
		w.bytes = 0
	}
	for key, r := range w.last {
		if r.seq <= upTo {
			delete(w.last, key)
			w.bytes -= len(key) + len(r.value) + keyOverhead
		}
	}
	w.prune = w.bytes + min(max(w.bytes, minRecentBytes), MaxRecentBytes/8)
}
