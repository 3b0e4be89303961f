package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// load reads the packed batches of a store, and the notes of drops for them, into memory. last is
// the newest batch of the store. They cannot be looked up before Memtable.Index. load must be
// called inside fault.read.
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
		if err := l.memtable.Load(seq, it.Value(), l.dropNotes); err != nil {
			return fmt.Errorf("packed batch %d: %w", seq, err)
		}
		return nil
	})
}

// eachIn calls fn with an iterator at each key in span. It must be called inside fault.read.
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
