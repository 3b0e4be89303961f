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
//
// It also asks Pebble to compact the runs where Options.maxRuns of them overlap. Pebble by itself would not
// take all of them at once, and write what is below once more for each part.
type compactor struct {
	core    *core
	flushed chan struct{} // takes one: there is a new table
	filled  chan struct{} // as well, for the runs
}

// maxFlushes is how many tables of flushes may overlap at a key before they are compacted. A flush
// makes several tables, but they do not overlap.
const maxFlushes = 16

// noteFlush wakes the goroutines. Pebble holds locks in its call. A flush follows most runs.
func (c *compactor) noteFlush() {
	for _, wake := range []chan struct{}{c.flushed, c.filled} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// compactFlushed compacts the tables of flushes, as repeat.
func (c *compactor) compactFlushed(stop <-chan struct{}) { c.repeat(stop, c.flushed, c.tidy) }

// compactRuns compacts the runs, as repeat.
func (c *compactor) compactRuns(stop <-chan struct{}) {
	runs := prefixSpan([]byte{claimSpace})
	var met []storage.Damage // by the last compaction: it would meet it again
	c.repeat(stop, c.filled, func(ctx context.Context) error {
		if met != nil && slices.Equal(met, c.core.disk.damages.list()) {
			return nil
		}
		met = nil
		err := c.compactOverlapping(ctx, runs, c.core.o.maxRuns)
		if errors.As(err, new(*storage.DamageError)) {
			met = c.core.disk.damages.list()
		}
		return err
	})
}

// repeat runs in the background from the end of the startup until stop is closed or the store
// fails. A waiting compaction is canceled then, and one that has begun is left to Pebble.
func (c *compactor) repeat(stop, wake <-chan struct{}, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	select {
	case <-c.core.startup.over:
	case <-stop:
		return
	}
	go func() {
		defer cancel()
		select {
		case <-stop:
		case <-c.core.fault.failed:
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		// The store continues without the compaction.
		if err := do(ctx); errors.Is(err, storage.ErrDamaged) && !errors.As(err, new(*storage.DamageError)) {
			c.core.fault.noteDamage(err)
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

func (c *compactor) tidy(ctx context.Context) error {
	return errors.Join(
		c.excise(ctx, journalSpace, trimKey, c.core.o.PendingBytes),
		c.excise(ctx, packedSpace, packedFromKey, c.core.o.PendingBytes),
		c.compactOverlapping(ctx, pebble.KeyRange{Start: []byte{claimSpace + 1}, End: []byte{0xFF}}, maxFlushes),
	)
}

// compactOverlapping compacts the tables in a span until less than most of them overlap anywhere.
func (c *compactor) compactOverlapping(ctx context.Context, span pebble.KeyRange, most int) error {
	for {
		key, depth, err := c.deepest(span)
		if err != nil || depth < most {
			return err
		}
		// The range of a key: from L0, Pebble compacts all tables that overlap there, directly or
		// through others, but from a level below only the table with the key.
		if err := c.core.fault.write(func() error { return asRead(c.core.db.Compact(ctx, key, append(bytes.Clone(key), 0), false)) }); err != nil {
			return err
		}
	}
}

// excise removes the tables of a space whose keys begin at the number that the key first has, if
// they have at least some bytes. Pebble flushes what it has of their range in memory before that, so
// that after a crash the number is not less.
func (c *compactor) excise(ctx context.Context, space, first byte, least uint64) error {
	removed := pebble.KeyRange{Start: []byte{space}}
	err := c.core.fault.read(func() error {
		seq, err := readSeq(c.core.db, first)
		removed.End = binary.BigEndian.AppendUint64([]byte{space}, seq)
		return err
	})
	if err != nil {
		return err
	}
	levels, err := c.core.tables(removed)
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
	return c.core.fault.write(func() error { return asRead(c.core.db.Excise(ctx, removed)) })
}

// deepest returns the key in a span at which most tables in L0 overlap, and their number.
func (c *compactor) deepest(span pebble.KeyRange) (key []byte, depth int, err error) {
	levels, err := c.core.tables(span)
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
