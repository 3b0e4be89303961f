package occ

import (
	"bytes"
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
)

// Reads records what a transaction has read from the store, and its snapshot. It is not safe for
// concurrent use, and may be used only between History.Begin and End. If a method returns an error,
// it has added nothing; the error says which limit of a transaction is exceeded.
type Reads struct {
	// last batch of the snapshot: later batches that change what was read are not visible
	start uint64
	since uint64 // start before the transaction waited for its turn

	keys   map[string]uint64 // keys with the batches as of which they were read
	ranges []Range           // ranges of scans
	bytes  int               // size of all keys and of both ends of ranges, with keyOverhead for each
}

// Within starts the reads of a part with the snapshot of its transaction.
func (s *Reads) Within(whole *Reads) { s.start, s.since = whole.start, whole.since }

// Note records the read of a key.
func (s *Reads) Note(key string) error { return s.NoteAsOf(key, s.start) }

// NoteAsOf records a read as of a batch, which may be later than the snapshot.
func (s *Reads) NoteAsOf(name string, asOf uint64) error {
	if _, known := s.keys[name]; known {
		return nil
	}
	if err := s.grow(len(name) + keyOverhead); err != nil {
		return err
	}
	s.keys[name] = asOf
	return nil
}

// BeginScan records the read of an empty range that starts at lo, which ExtendScan extends, and
// returns its index.
func (s *Reads) BeginScan(lo []byte) (int, error) {
	if len(s.ranges) == limits.TxScans {
		return 0, errScans
	}
	r := Range{bytes.Clone(lo), append([]byte{}, lo...)}
	if err := s.grow(r.size()); err != nil {
		return 0, err
	}
	s.ranges = append(s.ranges, r)
	return len(s.ranges) - 1, nil
}

// ExtendScan extends the range of a scan to hi.
func (s *Reads) ExtendScan(index int, hi []byte) error {
	r := &s.ranges[index]
	if err := s.grow(len(hi) - len(r.Hi)); err != nil {
		return err
	}
	r.Hi = hi
	return nil
}

func (s *Reads) grow(by int) error {
	if s.bytes+by > limits.TxReadBytes {
		return errReadBytes
	}
	s.bytes += by
	return nil
}

var (
	errScans     = fmt.Errorf("%d scans in one transaction", limits.TxScans)
	errReadBytes = fmt.Errorf("keys of %d bytes were read in one transaction: read less, or in several transactions", limits.TxReadBytes)
)

// Contains reports whether a key was read.
func (s *Reads) Contains(key string) bool {
	if _, read := s.keys[key]; read {
		return true
	}
	for _, r := range s.ranges {
		if r.holds(key) {
			return true
		}
	}
	return false
}

// MergeScans sorts and merges the ranges of scans, for a faster validation.
func (s *Reads) MergeScans() { s.ranges = mergeRanges(s.ranges) }

// Fits returns an error if the reads of a part would exceed the limit of its transaction.
func (s *Reads) Fits(part *Reads) error {
	switch {
	case len(s.ranges)+len(part.ranges) > limits.TxScans:
		return errScans
	case s.bytes+s.missing(part) > limits.TxReadBytes:
		return errReadBytes
	}
	return nil
}

// missing returns the size of the part's reads that its transaction does not have.
func (s *Reads) missing(part *Reads) (size int) {
	for key := range part.keys {
		if _, known := s.keys[key]; !known {
			size += len(key) + keyOverhead
		}
	}
	for _, r := range part.ranges {
		size += r.size()
	}
	return size
}

// Join adds the reads of a part. If the transaction has read the same key, the earlier batch is
// kept.
func (s *Reads) Join(part *Reads) {
	s.bytes += s.missing(part)
	s.ranges = append(s.ranges, part.ranges...)
	for key, at := range part.keys {
		if known, ok := s.keys[key]; !ok || at < known {
			s.keys[key] = at
		}
	}
}

// keptReads bounds the memory that is kept for the next transaction.
const keptReads = 1 << 12

// Emptied returns empty reads that reuse the memory.
func (s *Reads) Emptied() Reads {
	if len(s.keys) > keptReads || s.keys == nil {
		return Reads{keys: make(map[string]uint64)}
	}
	clear(s.keys)
	return Reads{keys: s.keys}
}
