package runs

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A group has tables that do not overlap, in the order of their keys: a run, a part of one, or
// a level.
type group []*table

// find returns the table that may have the key, nil if there is none. The filter of a single table
// decides faster than a comparison with the range of the table.
func (g group) find(key []byte) *table {
	if len(g) == 1 && g[0].filter.bits != nil {
		return g[0]
	}
	i := g.from(key)
	if i == len(g) || bytes.Compare(key, g[i].smallest) < 0 {
		return nil
	}
	return g[i]
}

// fewTables is how many filters are probed in less time than a search by key takes.
const fewTables = 4

// split returns the groups in which a key is searched: each of a few tables with filters is one.
func (g group) split() (groups []group) {
	if len(g) > fewTables || slices.ContainsFunc(g, func(t *table) bool { return t.filter.bits == nil }) {
		return []group{g}
	}
	for i := range g {
		groups = append(groups, g[i:i+1])
	}
	return groups
}

// between returns the tables that may have keys from first on and below end; nil is no bound.
func (g group) between(first, end []byte) group {
	if first != nil {
		g = g[g.from(first):]
	}
	if end != nil {
		i, _ := slices.BinarySearchFunc(g, end, func(t *table, end []byte) int { return bytes.Compare(t.smallest, end) })
		g = g[:i]
	}
	return g
}

// from returns the index of the first table that does not end before the key.
func (g group) from(key []byte) int {
	i, _ := slices.BinarySearchFunc(g, key, func(t *table, key []byte) int {
		if t.endsBefore(key) {
			return -1
		}
		return 1
	})
	return i
}

// after returns the index of the first table that begins after the key.
func (g group) after(key []byte) int {
	i, _ := slices.BinarySearchFunc(g, key, func(t *table, key []byte) int {
		if bytes.Compare(t.smallest, key) <= 0 {
			return -1
		}
		return 1
	})
	return i
}

// with returns the group with one more table, nil if they overlap.
func (g group) with(t *table) group {
	i := g.from(t.smallest)
	if i < len(g) && !t.endsBefore(g[i].smallest) {
		return nil
	}
	return slices.Insert(slices.Clip(g), i, t)
}

// hasOlder reports whether the group may have entries in a range that are older than seq.
func (g group) hasOlder(span pebble.KeyRange, seq uint64) bool {
	for _, t := range g[g.from(span.Start):] {
		if bytes.Compare(t.smallest, span.End) >= 0 {
			return false
		}
		if t.seq < seq {
			return true
		}
	}
	return false
}

func (g group) size() (n uint64) {
	for _, t := range g {
		n += t.size
	}
	return n
}

func (g group) use() {
	for _, t := range g {
		t.users.Add(1)
	}
}

func (g group) release() {
	for _, t := range g {
		t.release()
	}
}

// newestFirst sorts tables of L0 as Pebble does.
func newestFirst(a, b pebble.SSTableInfo) int {
	return cmp.Or(cmp.Compare(b.LargestSeqNum, a.LargestSeqNum), cmp.Compare(b.SmallestSeqNum, a.SmallestSeqNum),
		cmp.Compare(b.FileNum, a.FileNum))
}
