package runs

import (
	"bytes"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A list may omit tables because of the limits. For a key in the range of one of them, the list is
// final only if it finds an entry in a group that comes before all tables omitted: these may have a
// newer entry or a range delete otherwise. All tables that can have any other key are in the list,
// so for that key it is final in any case.

// maxOmitted is how many ranges of omitted tables a list has.
const maxOmitted = 64

// A coverage says which claims a list decides. The zero value is that of a list without tables, which
// decides nothing.
type coverage struct {
	loaded  bool              // the list has all tables that can contain claims, except in omitted
	omitted []pebble.KeyRange // the ranges of the tables omitted, in order. They do not touch
	newest  int               // how many groups come before all tables omitted
}

// complete reports whether the list has all tables that can contain claims.
func (c *coverage) complete() bool { return c.loaded && len(c.omitted) == 0 }

// mayLack reports whether a table that is not in the list may have a key.
func (c *coverage) mayLack(key []byte) bool {
	if len(c.omitted) == 0 {
		return !c.loaded
	}
	i := c.from(key)
	return !c.loaded || i < len(c.omitted) && bytes.Compare(c.omitted[i].Start, key) <= 0
}

// mayLackSome reports whether a table that is not in the list may have a key of a span.
func (c *coverage) mayLackSome(span pebble.KeyRange) bool {
	i := c.from(span.Start)
	return !c.loaded || i < len(c.omitted) && bytes.Compare(c.omitted[i].Start, span.End) < 0
}

// from returns the index of the first range that does not end before the key.
func (c *coverage) from(key []byte) int {
	i, found := slices.BinarySearchFunc(c.omitted, key, func(r pebble.KeyRange, key []byte) int { return bytes.Compare(r.End, key) })
	if found {
		i++
	}
	return i
}

// omit adds the ranges of tables that are not in the list. If there are too many, those with the
// smallest gaps in between become one.
func (c *coverage) omit(tables ...candidate) {
	all := slices.Clone(c.omitted)
	for _, t := range tables {
		all = append(all, t.bounds)
	}
	slices.SortFunc(all, func(a, b pebble.KeyRange) int { return bytes.Compare(a.Start, b.Start) })
	apart := func(end, start []byte) bool { return bytes.Compare(end, start) < 0 }
	c.omitted = Joined(all, apart)
	if len(c.omitted) <= maxOmitted {
		return
	}
	var gaps []float64
	for i := range c.omitted[1:] {
		gaps = append(gaps, gap(c.omitted[i].End, c.omitted[i+1].Start))
	}
	slices.Sort(gaps)
	least := gaps[len(gaps)-maxOmitted] // one less than the ranges are more
	c.omitted = Joined(c.omitted, func(end, start []byte) bool { return gap(end, start) > least })
}

// Joined returns ranges, which are in the order of their starts, joined where they are not apart.
func Joined(ranges []pebble.KeyRange, apart func(end, start []byte) bool) (all []pebble.KeyRange) {
	for _, r := range ranges {
		switch last := len(all) - 1; {
		case last < 0 || apart(all[last].End, r.Start):
			all = append(all, r)
		case bytes.Compare(all[last].End, r.End) < 0:
			all[last].End = r.End
		}
	}
	return all
}

// gap returns about which part of all keys is between two.
func gap(from, to []byte) float64 {
	same := 0
	for same < min(len(from), len(to)) && from[same] == to[same] {
		same++
	}
	number := func(key []byte) (n float64) {
		for i := range min(8, len(key)-same) {
			n += math.Ldexp(float64(key[same+i]), -8*i)
		}
		return n
	}
	return math.Ldexp(number(to)-number(from), -8*same)
}

// boundsOf returns the range of a table from smallest to largest.
func boundsOf(smallest, largest []byte, exclusive bool) pebble.KeyRange {
	if !exclusive {
		largest = append(slices.Clip(largest), 0)
	}
	return pebble.KeyRange{Start: smallest, End: largest}
}
