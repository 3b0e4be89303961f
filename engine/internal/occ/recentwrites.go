package occ

// MaxRecentBytes is the maximum memory of the keys that are written while a transaction is open,
// with 64 bytes for each key, and of their small values. When it is reached, open transactions that
// have read keys conflict.
const MaxRecentBytes = 64 << 20

// keyOverhead is the estimated memory of a key in a map in addition to its bytes.
const keyOverhead = 64

// maxRecentValue is the maximum size of a value that is kept with its key to save a read of the
// store. For the same reason, minRecentBytes are kept even if no open transaction needs them.
const (
	maxRecentValue = 64
	minRecentBytes = 256 << 10
)

// recentWrites has the last batch that wrote each key, as long as an open transaction needs it.
type recentWrites struct {
	last   map[string]recentWrite
	newest uint64 // last batch in it
	bytes  int    // size of the keys and values, with keyOverhead for each key
	prune  int    // size at which keys are next dropped
}

// A recentWrite is the last write to a key.
type recentWrite struct {
	seq   uint64
	known bool   // value is the written value
	value []byte // nil if the key was removed; never modified
}

// note records a write of the key.
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

// full reports whether needed keys must also be dropped.
func (w *recentWrites) full() bool { return w.bytes >= MaxRecentBytes }

// forget drops all keys whose last write is at or before the given batch.
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
