package pebble

import (
	"context"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A claimReader reads claims in memory and in Pebble's tables.
type claimReader struct {
	core     *core
	reader   *reader
	cursors  cursors
	unsealed *unsealed
}

// cursors opens cursors: a reader.
type cursors interface {
	newCursor(span pebble.KeyRange) (*cursor, error)
}

func (r *claimReader) Claim(key []byte) ([]byte, bool, error) {
	if err := r.core.fault.get(); err != nil {
		return nil, false, err
	}
	if record, known := r.unsealed.get(key); known {
		return record, record != nil, nil
	}
	k := spaced(claimSpace, key)
	if record, known := r.core.recentRuns.get(k); known {
		if err := r.core.fault.get(); err != nil {
			return nil, false, err
		}
		return record, record != nil, nil
	}
	return r.reader.get(k)
}

// claims calls fn with the tables in memory, the newer first, and with the contents of Pebble's
// tables under span, from one moment. look is called at that moment, under the lock of the tables;
// fn is called under no lock.
func (r *claimReader) claims(span pebble.KeyRange, look func(tables []*table), fn func(tables []*table, c *cursor) error) error {
	var tables []*table
	var c *cursor
	defer func() {
		for _, t := range tables {
			t.unuse()
		}
	}()
	err := r.unsealed.hold(func(held []*table) (err error) {
		for _, t := range held {
			t.users.Add(1)
		}
		tables = held
		look(held)
		c, err = r.cursors.newCursor(span)
		return err
	})
	if err != nil {
		return err
	}
	return r.reader.use(c, func(c *cursor) error { return fn(tables, c) })
}

func (r *claimReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	var at moment
	freeze := func(tables []*table) { at = momentOf(tables) }
	return r.claims(keyRange(claimSpace, span), freeze, func(_ []*table, c *cursor) error {
		if started != nil {
			started()
		}
		claims := at.sorted(span)
		defer claims.free()
		return merge(claims, c, func(key, record []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(key, record)
		})
	})
}
