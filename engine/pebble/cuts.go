package pebble

import (
	"bytes"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
)

// If possible, all runs are divided into tables at about the same keys. The tables of L0 then form
// groups that do not overlap, and each group is compacted separately: with four groups, a
// compaction takes a fourth of the time and of the free disk space, and Close waits no longer than
// that.
//
// A table that crosses a border joins two groups. So a run is divided at each border of the last
// large run, even if it has few claims there. The first run after Open takes the borders from
// Pebble's tables.

// groups returns the start keys of the groups of overlapping tables in L0.
func (c *core) groups() (borders [][]byte, err error) {
	levels, err := c.tables(prefixSpan([]byte{claimSpace}))
	if err != nil {
		return nil, err
	}
	tables := levels[0]
	slices.SortFunc(tables, func(a, b pebble.SSTableInfo) int { return bytes.Compare(a.Smallest.UserKey, b.Smallest.UserKey) })
	var end []byte
	for i := range tables {
		t := &tables[i]
		if i > 0 && bytes.Compare(t.Smallest.UserKey, end) > 0 {
			borders = append(borders, t.Smallest.UserKey)
		}
		if bytes.Compare(t.Largest.UserKey, end) > 0 {
			end = t.Largest.UserKey
		}
	}
	return borders, nil
}

// A cut is a position among the claims of a run at which a table begins.
type cut struct {
	at     int
	border []byte // border of the cut, nil for a new one
}

// cuts divides claims into tables: at borders; at ends of buckets, because a table with only one
// bucket can be dropped unread; and where tables would be too large.
func (f *runFiles) cuts(claims *memtable.Sorted, borders [][]byte) []cut {
	n := claims.Len()
	if n == 0 {
		return nil
	}
	size := claims.Bytes()
	entry := max(1, size/n) // bytes
	c := cutter{claims: claims, least: max(1, f.core.o.boundaryBytes/2/entry), most: max(1, f.core.o.runBytes/entry)}
	for _, key := range borders {
		if at := claims.Search(key[1:]); at > c.start && at < n {
			c.end(at)
			c.cuts = append(c.cuts, cut{at, key})
		}
	}
	c.end(n)
	if size >= 2*f.core.o.runBytes {
		f.borders = c.borders()
	}
	return c.cuts
}

// A cutter divides claims from start on into tables.
type cutter struct {
	claims      *memtable.Sorted
	least, most int
	start       int
	cuts        []cut
}

// end divides the claims up to a border, and moves start to it.
func (c *cutter) end(border int) {
	for i := c.start + 1; i < border; i++ {
		if c.claims.BeginsBucket(i) && i-c.start >= 2*c.least && border-i >= c.least {
			c.pieces(i)
			c.cuts = append(c.cuts, cut{at: i})
		}
	}
	c.pieces(border)
}

// pieces divides the claims up to end into equal tables if they are too many for one.
func (c *cutter) pieces(end int) {
	n := end - c.start
	if 2*n > 3*c.most { // well below most, because the next run may have a few more claims at the same place
		tables := (n + c.most - 1) / c.most
		for i := 1; i < tables; i++ {
			c.cuts = append(c.cuts, cut{at: c.start + i*n/tables})
		}
	}
	c.start = end
}

// borders returns the keys of the cuts for the next run, without cuts of small tables, such as
// those of a week that gets few further claims.
func (c *cutter) borders() [][]byte {
	borders, start := [][]byte{}, 0
	for _, cut := range c.cuts {
		if cut.at-start < c.least || c.claims.Len()-cut.at < c.least {
			continue
		}
		start = cut.at
		if cut.border == nil {
			cut.border = c.claims.Key([]byte{claimSpace}, start)
		}
		borders = append(borders, cut.border)
	}
	return borders
}

// tables returns the tables that overlap with a span, by level.
func (c *core) tables(span pebble.KeyRange) (levels [][]pebble.SSTableInfo, err error) {
	return readValue(c.fault, func() ([][]pebble.SSTableInfo, error) {
		levels, err := c.db.SSTables(pebble.WithKeyRangeFilter(span.Start, span.End))
		return levels, asRead(err)
	})
}
