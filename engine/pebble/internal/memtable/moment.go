package memtable

import (
	"bytes"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A Moment has the contents of tables at one time, newer table first. Later changes do not affect
// it. It is valid until its tables are released.
type Moment []frame

// A frame is the state of a table at one time.
type frame struct {
	table   *Table // keeps the arena in memory
	arena   []byte
	buckets []tableBucket
	keys    int // approximate number of entries
	drops   int
}

func (t *Table) frame() frame {
	return frame{t, t.arena[:len(t.arena):len(t.arena)], slices.Clone(t.buckets), t.keys, t.drops}
}

func momentOf(tables []*Table) (at Moment) {
	for _, t := range tables {
		at = append(at, t.frame())
	}
	return at
}

// selects returns a function that reports whether the key of an entry is in the span.
func (f frame) selects(span storage.Span) func(e entry) bool {
	start := span.Start()
	if len(start) == 0 {
		return func(entry) bool { return true }
	}
	near := make([]bool, len(f.buckets)) // the span may contain keys of this bucket
	for i := range f.buckets {
		prefix := []byte(f.buckets[i].prefix)
		n := min(len(prefix), len(span.Prefix))
		near[i] = bytes.Equal(prefix[:n], span.Prefix[:n])
	}
	var key []byte
	return func(e entry) bool {
		if !near[e.bucket] {
			return false
		}
		key = append(append(key[:0], f.buckets[e.bucket].prefix...), e.tail...)
		return span.Holds(key)
	}
}

// prefixes returns the prefixes of all buckets, in order.
func (m Moment) prefixes() (all []string) {
	for _, f := range m {
		for i := range f.buckets {
			all = append(all, f.buckets[i].prefix)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
