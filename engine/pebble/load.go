package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// load reads the packed batches of a store whose newest batch is last, with the notes of the drops
// that concern them, into memory. They cannot be looked up before unsealed.index. The caller has
// called fault.read.
func (l *packedLog) load(db *pebble.DB, last uint64) (err error) {
	l.dropNotes = make(map[string]uint64)
	err = eachIn(db, prefixSpan([]byte{dropSpace}), func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Value())
		l.dropNotes[string(it.Key()[1:])] = seq
		return err
	})
	if err != nil {
		return err
	}
	if l.packedFrom, err = readSeq(db, packedFromKey); err != nil {
		return err
	}
	span := pebble.KeyRange{Start: packedKey(l.packedFrom), End: []byte{packedSpace + 1}}
	return eachIn(db, span, func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Key()[1:])
		if err != nil {
			return err
		}
		if seq > last {
			return fmt.Errorf("%w: packed batch %d, the newest batch is %d", storage.ErrDamaged, seq, last)
		}
		if err := l.unsealed.load(seq, it.Value(), l.dropNotes); err != nil {
			return fmt.Errorf("packed batch %d: %w", seq, err)
		}
		return nil
	})
}

// eachIn calls fn with an iterator at each key in span. The caller has called fault.read.
func eachIn(db *pebble.DB, span pebble.KeyRange, fn func(*pebble.Iterator) error) (err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: span.Start, UpperBound: span.End})
	if err != nil {
		return asRead(err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = asRead(cerr)
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		if err := fn(it); err != nil {
			return err
		}
	}
	return asRead(it.Error())
}

// load adds a packed batch. It omits buckets that were dropped after it. Nothing else uses the
// tables until index has returned.
func (m *unsealed) load(seq uint64, packed []byte, dropNotes map[string]uint64) error {
	t := m.active
	if t.size() >= m.limit && m.frozen == nil {
		m.frozen, m.active = t, newTable(m.seed, m.limit, 0)
		t = m.active
	}
	t.last = seq
	t.reserve(2 * len(packed))
	var bucket uint32
	return eachPacked(packed, func(prefix []byte) (skip bool) {
		if at, noted := dropNotes[string(prefix)]; noted && seq <= at {
			return true
		}
		bucket = t.bucket(prefix)
		return false
	}, func(tail, record []byte) { t.load(bucket, tail, record) })
}

// reserve makes room for n bytes in the arena, and for a quarter more if it is beyond the limit of a
// table. Unlike append, it does not clear fresh memory.
func (t *table) reserve(n int) {
	if used := len(t.arena); cap(t.arena)-used < n {
		t.arena = append(make([]byte, 0, used+max(n, used/4)), t.arena...)
	}
}

// load adds an entry that get does not find until index is called.
func (t *table) load(bucket uint32, tail, record []byte) {
	off := len(t.arena)
	t.arena = appendEntry(t.arena, bucket, tail, record)
	t.buckets[bucket].bytes += uint64(len(t.arena) - off)
	t.keys++ // corrected by index
}

// index makes what load has added visible.
func (m *unsealed) index() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active.indexAll()
	if m.frozen != nil {
		m.frozen.indexAll()
	}
}

// indexAll fills the slots of a table whose entries were added by load.
func (t *table) indexAll() {
	t.grow(slotsFor(t.keys)) // of empty ones
	t.keys = 0
	var writes [64]tableWrite
	var offs [len(writes)]uint32
	for off := uint32(0); off < uint32(len(t.arena)); {
		n := 0
		for ; n < len(writes) && off < uint32(len(t.arena)); n++ {
			e := t.entry(off)
			writes[n], offs[n] = t.write(e.bucket, e.tail, e.record), off
			off = e.end
		}
		t.prefetch(writes[:n])
		for i := range writes[:n] {
			t.set(&writes[i], offs[i])
		}
	}
}
