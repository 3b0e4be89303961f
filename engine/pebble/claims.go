package pebble

import (
	"context"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A claimReader reads claims in memory and in Pebble's tables.
type claimReader struct {
	core     *core
	reader   *reader
	cursors  cursors
	memtable *memtable.Memtable
}

// cursors opens cursors: a reader.
type cursors interface {
	newCursor(span pebble.KeyRange) (*cursor, error)
}

func (r *claimReader) Claim(key []byte) ([]byte, bool, error) {
	if err := r.core.fault.get(); err != nil {
		return nil, false, err
	}
	if record, known := r.memtable.Get(key); known {
		return record, record != nil, nil
	}
	k := spaced(claimSpace, key)
	if record, known := r.core.recentRuns.Get(k); known {
		if err := r.core.fault.get(); err != nil {
			return nil, false, err
		}
		return record, record != nil, nil
	}
	return r.reader.get(k)
}

// claims calls fn with a view of memory and with the contents of Pebble's tables under span, from one
// moment. look is called at that moment, while nothing in memory can change; fn is called under no lock.
func (r *claimReader) claims(span pebble.KeyRange, look func(*memtable.View), fn func(*memtable.View, *cursor) error) error {
	var c *cursor
	view, err := r.memtable.View(func(v *memtable.View) (err error) {
		look(v)
		c, err = r.cursors.newCursor(span)
		return err
	})
	defer view.Release()
	if err != nil {
		return err
	}
	return r.reader.use(c, func(c *cursor) error { return fn(view, c) })
}

func (r *claimReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	var at memtable.Moment
	look := func(v *memtable.View) { at = v.Moment() }
	return r.claims(keyRange(claimSpace, span), look, func(_ *memtable.View, c *cursor) error {
		if started != nil {
			started()
		}
		claims := at.Sorted(span)
		defer claims.Free()
		return merge(claims, c, func(key, record []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(key, record)
		})
	})
}
