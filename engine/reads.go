package engine

import (
	"bytes"
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A readSet is the set of a transaction's reads from the store, and their snapshot.
type readSet struct {
	// every batch up to this one is visible to the transaction, and no later one that changes its
	// reads
	start uint64
	since uint64 // start, or its value before the transaction waited for its turn

	keys   map[string]uint64 // to the batch as of which they were read
	ranges []keyRange        // the ranges of scans
	bytes  int               // of all keys and of both ends of ranges, with keyOverhead for each
}

// note records that the transaction depends on a read of a name as of a batch.
func (s *readSet) note(name string, asOf uint64) error {
	if _, known := s.keys[name]; known {
		return nil
	}
	if err := s.grow(len(name) + keyOverhead); err != nil {
		return err
	}
	s.keys[name] = asOf
	return nil
}

// newScan begins the range of keys that a scan reads from lo on, which is empty, and returns its
// index.
func (s *readSet) newScan(lo []byte) (int, error) {
	if len(s.ranges) == limits.TxScans {
		return 0, fmt.Errorf("%w: %d scans in one transaction", ErrLimit, limits.TxScans)
	}
	r := keyRange{bytes.Clone(lo), append([]byte{}, lo...)}
	if err := s.grow(r.size()); err != nil {
		return 0, err
	}
	s.ranges = append(s.ranges, r)
	return len(s.ranges) - 1, nil
}

// extendScan moves the end of the range of a scan.
func (s *readSet) extendScan(index int, hi []byte) error {
	r := &s.ranges[index]
	if err := s.grow(len(hi) - len(r.hi)); err != nil {
		return err
	}
	r.hi = hi
	return nil
}

func (s *readSet) grow(by int) error {
	if s.bytes+by > limits.TxReadBytes {
		return fmt.Errorf("%w: keys of %d bytes were read in one transaction: read less, or in several transactions", ErrLimit, limits.TxReadBytes)
	}
	s.bytes += by
	return nil
}

// contains reports whether a key was read.
func (s *readSet) contains(key string) bool {
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

// fits returns an error if the reads of a part would exceed the limit of its transaction.
func (s *readSet) fits(part *readSet) error {
	switch {
	case len(s.ranges)+len(part.ranges) > limits.TxScans:
		return fmt.Errorf("%w: %d scans in one transaction", ErrLimit, limits.TxScans)
	case s.bytes+s.missing(part) > limits.TxReadBytes:
		return fmt.Errorf("%w: keys of %d bytes were read in one transaction", ErrLimit, limits.TxReadBytes)
	}
	return nil
}

// missing returns the size of the part's reads that its transaction has not made.
func (s *readSet) missing(part *readSet) (size int) {
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

// join adds the reads of a part, as of the earlier batch if the transaction has made them too.
func (s *readSet) join(part *readSet) {
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

// emptied returns an empty set with the same memory.
func (s *readSet) emptied() readSet {
	if len(s.keys) > keptReads || s.keys == nil {
		return readSet{keys: make(map[string]uint64)}
	}
	clear(s.keys)
	return readSet{keys: s.keys}
}
