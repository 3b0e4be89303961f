package pebble

import (
	"bytes"
	"context"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A claimReader reads claims in memory and in Pebble's tables.
type claimReader struct {
	*core
	*reader
	cursors  cursors
	unsealed *unsealed
}

// cursors opens cursors: a reader.
type cursors interface {
	newCursor(span pebble.KeyRange) (*cursor, error)
}

// Claim implements storage.Store. A claim that is not in memory now was in tables before.
func (r *claimReader) Claim(key []byte) ([]byte, bool, error) {
	if err := r.fault.get(); err != nil {
		return nil, false, err
	}
	if record, known := r.unsealed.get(key); known {
		return record, record != nil, nil
	}
	k := spaced(claimSpace, key)
	if record, known := r.recentRuns.get(k); known {
		if err := r.fault.get(); err != nil {
			return nil, false, err
		}
		return record, record != nil, nil
	}
	return r.get(k)
}

// claims calls fn with the tables in memory, the newer first, and with the contents of Pebble's
// tables under span, from one moment. look is called at that moment, under the lock of the tables;
// fn is called under no lock.
func (r *claimReader) claims(span pebble.KeyRange, look func(tables []*table), fn func(tables []*table, c *cursor) error) error {
	var tables []*table
	var c *cursor
	err := r.unsealed.hold(func(held []*table) (err error) {
		tables = held
		look(held)
		c, err = r.cursors.newCursor(span)
		return err
	})
	if err != nil {
		return err
	}
	return r.use(c, func(c *cursor) error { return fn(tables, c) })
}

// Scan implements storage.Store. It first sorts the claims in memory that the span selects.
func (r *claimReader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	var at moment
	freeze := func(tables []*table) { at = momentOf(tables) }
	return r.claims(keyRange(claimSpace, span), freeze, func(_ []*table, c *cursor) error {
		if started != nil {
			started()
		}
		return merge(at.sorted(span), c, func(key, record []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return fn(key, record)
		})
	})
}

// Buckets implements storage.Store. It seeks from bucket to bucket.
func (r *claimReader) Buckets(fn func(storage.Bucket) error) error {
	var found, unsealed []string
	look := func(tables []*table) { unsealed = prefixesOf(tables) }
	err := r.claims(prefixSpan([]byte{claimSpace}), look, func(tables []*table, c *cursor) error {
		for _, prefix := range unsealed {
			if r.unsealed.holdsSome(tables, prefix) {
				found = append(found, prefix)
			}
		}
		for ok := c.do(c.it.First); ok; {
			prefix, _ := splitPrefix(c.it.Key()[1:])
			own := string(prefix)
			if some, err := r.seen(tables, own, c); err != nil {
				return err
			} else if some {
				found = append(found, own)
			}
			next := successor(spaced(claimSpace, []byte(own)))
			ok = c.do(func() bool { return c.it.SeekGE(next) })
		}
		return c.err
	})
	if err != nil {
		return err
	}
	slices.Sort(found)
	for _, prefix := range slices.Compact(found) {
		b, _, err := storage.SplitKey([]byte(prefix))
		if err != nil {
			return err
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// seen reports whether there is a claim at or after c, in the bucket with that prefix, that memory
// does not remove.
func (r *claimReader) seen(tables []*table, prefix string, c *cursor) (bool, error) {
	start := spaced(claimSpace, []byte(prefix))
	for ok := c.it.Valid(); ok && bytes.HasPrefix(c.it.Key(), start); ok = c.do(c.it.Next) {
		if !r.unsealed.removes(tables, c.it.Key()[1:]) {
			return true, c.err
		}
	}
	return false, c.err
}
