package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A compactor keeps the tables of flushes few. They share L0 with the runs, of which many more may
// overlap than a read of state should search. So the compactor asks Pebble to compact the tables
// outside of the claims where maxFlushes of them overlap, and to remove those of the journal and of
// packed batches that were removed from these: Pebble only removes tables that are below L0.
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
	for ctx.Err() == nil {
		// The store continues without the compaction.
		if err := c.tidy(ctx); errors.Is(err, storage.ErrDamaged) {
			c.fault.noteDamage(err)
		}
		select {
		case <-c.flushed:
		case <-ctx.Done():
		}
	}
}

func (c *compactor) tidy(ctx context.Context) error {
	return errors.Join(
		c.excise(ctx, journalSpace, trimKey, c.o.PendingBytes),
		c.excise(ctx, packedSpace, packedFromKey, c.o.PendingBytes),
		c.compactOverlapping(ctx),
	)
}

// compactOverlapping compacts the tables of flushes until less than maxFlushes of them overlap anywhere.
func (c *compactor) compactOverlapping(ctx context.Context) error {
	for {
		key, depth, err := c.deepest(pebble.KeyRange{Start: []byte{claimSpace + 1}, End: []byte{0xFF}})
		if err != nil || depth < maxFlushes {
			return err
		}
		// The range of a key: from L0, Pebble compacts all tables that overlap there, directly or
		// through others, but from a level below only the table with the key.
		if err := c.fault.write(func() error { return asRead(c.db.Compact(ctx, key, append(bytes.Clone(key), 0), false)) }); err != nil {
			return err
		}
	}
}

// excise removes the tables of a space whose keys begin at the number that the key first has, if
// they have at least some bytes. Pebble flushes what it has of their range in memory before that, so
// that after a crash the number is not less.
func (c *compactor) excise(ctx context.Context, space, first byte, least uint64) error {
	removed := pebble.KeyRange{Start: []byte{space}}
	err := c.fault.read(func() error {
		seq, err := readSeq(c.db, first)
		removed.End = binary.BigEndian.AppendUint64([]byte{space}, seq)
		return err
	})
	if err != nil {
		return err
	}
	levels, err := c.tables(removed)
	if err != nil {
		return err
	}
	size := uint64(0)
	for _, tables := range levels {
		for i := range tables {
			if bytes.Compare(tables[i].Largest.UserKey, removed.End) < 0 {
				size += tables[i].Size
			}
		}
	}
	if size < least {
		return nil
	}
	return c.fault.write(func() error { return asRead(c.db.Excise(ctx, removed)) })
}

// deepest returns the key in a span at which most tables in L0 overlap, and their number.
func (c *compactor) deepest(span pebble.KeyRange) (key []byte, depth int, err error) {
	levels, err := c.tables(span)
	if err != nil {
		return nil, 0, err
	}
	var first, last [][]byte
	for i := range levels[0] {
		first = append(first, slices.MaxFunc([][]byte{levels[0][i].Smallest.UserKey, span.Start}, bytes.Compare))
		last = append(last, levels[0][i].Largest.UserKey)
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

// tables returns the tables that overlap with a span, by levels.
func (c *compactor) tables(span pebble.KeyRange) (levels [][]pebble.SSTableInfo, err error) {
	err = c.fault.read(func() (err error) {
		levels, err = c.db.SSTables(pebble.WithKeyRangeFilter(span.Start, span.End))
		return asRead(err)
	})
	return levels, err
}
