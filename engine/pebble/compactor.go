package pebble

import (
	"bytes"
	"context"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A compactor compacts the tables of flushes. They share L0 with the runs, of which many more may
// overlap than a read of state should search: so Pebble is asked to compact the tables outside of
// the claims where maxFlushes of them overlap.
type compactor struct {
	*core
	flushed chan struct{} // takes one: there is a new table
}

// maxFlushes is how many tables of flushes may overlap at a key before they are compacted. A flush
// makes several tables, but they do not overlap.
const maxFlushes = 16

// noteFlush wakes compactFlushed. Pebble holds locks in its call.
func (c *compactor) noteFlush() {
	select {
	case c.flushed <- struct{}{}:
	default:
	}
}

// compactFlushed runs in the background from the end of the startup until stop is closed or the
// store fails. A compaction that has begun then is Pebble's, and one that waits is canceled.
func (c *compactor) compactFlushed(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	select {
	case <-c.startup.over:
	case <-stop:
		return
	}
	go func() {
		defer cancel()
		select {
		case <-stop:
		case <-c.fault.failed:
		case <-ctx.Done():
		}
	}()
	for {
		// An error was reported by Pebble's events, and the store continues without the compaction.
		for c.compactDeepest(ctx) {
		}
		select {
		case <-c.flushed:
		case <-ctx.Done():
			return
		}
	}
}

// compactDeepest compacts the tables at the key where most overlap, if these are too many, and
// reports whether it did.
func (c *compactor) compactDeepest(ctx context.Context) bool {
	key, depth, err := c.deepest(pebble.KeyRange{Start: []byte{claimSpace + 1}, End: []byte{0xFF}})
	if err != nil || depth < maxFlushes {
		return false
	}
	// The range of a key: from L0, Pebble compacts all tables that overlap there, directly or through
	// others, but from a level below only the table with the key.
	return c.fault.write(func() error { return c.db.Compact(ctx, key, append(bytes.Clone(key), 0), false) }) == nil
}

// deepest returns the key in a span at which most tables in L0 overlap, and their number.
func (c *compactor) deepest(span pebble.KeyRange) (key []byte, depth int, err error) {
	var tables [][]pebble.SSTableInfo
	err = c.fault.read(func() (err error) {
		tables, err = c.db.SSTables(pebble.WithKeyRangeFilter(span.Start, span.End))
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	var first, last [][]byte
	for i := range tables[0] {
		first = append(first, tables[0][i].Smallest.UserKey)
		last = append(last, tables[0][i].Largest.UserKey)
	}
	slices.SortFunc(first, bytes.Compare)
	slices.SortFunc(last, bytes.Compare)
	ended := 0
	for i := range first {
		for bytes.Compare(last[ended], first[i]) < 0 {
			ended++
		}
		if n := i + 1 - ended; n > depth {
			key, depth = first[i], n
		}
	}
	return key, depth, nil
}
