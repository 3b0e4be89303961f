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

// A compactor limits the number of tables of flushes. They share L0 with the runs, and many more
// runs may overlap than a read of state should search. So the compactor asks Pebble to compact
// tables without claims where maxFlushes of them overlap. It also asks Pebble to remove tables of
// trimmed journal entries and of removed packed batches, because Pebble itself removes only tables
// below L0.
//
// It also asks Pebble to compact the runs where Options.maxRuns of them overlap. Pebble itself
// would not take all of them at once, and would rewrite the lower levels for each part.
type compactor struct {
	core    *core
	flushed chan struct{} // capacity 1: there is a new table
	filled  chan struct{} // the same for runs
}

// maxFlushes is how many tables of flushes may overlap at a key before they are compacted. The
// tables of one flush do not overlap.
const maxFlushes = 16

// noteFlush wakes the goroutines. Pebble holds locks when it calls noteFlush. A flush follows most
// runs.
func (c *compactor) noteFlush() {
	for _, wake := range []chan struct{}{c.flushed, c.filled} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// compactFlushed compacts the tables of flushes in the background, see repeat.
func (c *compactor) compactFlushed(stop <-chan struct{}) { c.repeat(stop, c.flushed, c.tidy) }

// compactRuns compacts the runs in the background, see repeat.
func (c *compactor) compactRuns(stop <-chan struct{}) {
	runs := prefixSpan([]byte{claimSpace})
	var met []storage.Damage // met by the last compaction, which would meet it again
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

// repeat runs from the end of the startup until stop is closed or the store fails. Then it cancels
// a waiting compaction, and leaves a running one to Pebble.
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

// compactOverlapping compacts the tables in a span until fewer than most of them overlap at any
// key.
func (c *compactor) compactOverlapping(ctx context.Context, span pebble.KeyRange, most int) error {
	for {
		key, depth, err := c.deepest(span)
		if err != nil || depth < most {
			return err
		}
		// The range contains only the key: of L0, Pebble compacts all tables that overlap there,
		// directly or through others, but of lower levels only the table with the key.
		if err := c.core.fault.write(func() error { return asRead(c.core.db.Compact(ctx, key, append(bytes.Clone(key), 0), false)) }); err != nil {
			return err
		}
	}
}

// excise removes the tables of a space with keys before the number in key first, if they have a
// minimum size. Pebble first flushes its memory in that range, so that the number is not lower
// after a crash.
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

// deepest returns the key in a span at which the most tables of L0 overlap, and their number.
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
