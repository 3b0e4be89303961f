package occ

import (
	"bytes"
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
)

// Reads are the reads of a transaction from the store, and their snapshot. They are not safe for
// concurrent use, and may be used only between History.Begin and End. An error of a method says which
// limit of a transaction is exceeded; nothing was added then.
type Reads struct {
	// every batch up to this one is visible to the transaction, and no later one that changes its
	// reads
	start uint64
	since uint64 // start, or its value before the transaction waited for its turn

	keys   map[string]uint64 // to the batch as of which they were read
	ranges []Range           // the ranges of scans
	bytes  int               // of all keys and of both ends of ranges, with keyOverhead for each
}

// Within begins the reads of a part, which have the snapshot of its transaction.
func (s *Reads) Within(whole *Reads) { s.start, s.since = whole.start, whole.since }

// Note adds the read of a key.
func (s *Reads) Note(key string) error { return s.NoteAsOf(key, s.start) }

// NoteAsOf adds a read as of a batch, which may be after the snapshot.
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

// BeginScan begins the range of keys that a scan reads from lo on, which is empty, and returns its
// index.
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

// ExtendScan moves the end of the range of a scan.
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

// MergeScans sorts and joins the ranges of the scans, which makes the validation faster.
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

// missing returns the size of the part's reads that its transaction has not made.
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

// Join adds the reads of a part, as of the earlier batch if the transaction has made them too.
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

// Emptied returns no reads, with the same memory.
func (s *Reads) Emptied() Reads {
	if len(s.keys) > keptReads || s.keys == nil {
		return Reads{keys: make(map[string]uint64)}
	}
	clear(s.keys)
	return Reads{keys: s.keys}
}
