package bolt

import (
	"bytes"
	"context"
	"errors"

	"github.com/hapax-dev/hapax/engine/storage"
)

// buckets calls fn for each bucket's prefix, in key order. It reads the sums, which have checksums.
func (tx *readTx) buckets(fn func(prefix []byte, s sum) error) error {
	t, err := tx.dir(sumsDir)
	if err != nil {
		return err
	}
	err = t.each([]byte{claimSpace}, func(c *cursor) error {
		if c.key()[0] != claimSpace {
			return errEnough
		}
		s, err := parseSum(c.record())
		if err != nil {
			return err
		}
		return fn(c.key()[1:], s)
	})
	return enough(err)
}

// scan visits the claims in the span in key order, and compares each bucket with its sum if it has
// read all of it.
func (tx *readTx) scan(ctx context.Context, span storage.Span, fn func(prefix []byte, c *cursor) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := span.Start()
	return tx.buckets(func(prefix []byte, want sum) error {
		n := min(len(prefix), len(span.Prefix))
		switch c := bytes.Compare(prefix[:n], span.Prefix[:n]); {
		case c < 0:
			return nil
		case c > 0:
			return errEnough
		}
		from, part := bytes.CutPrefix(start, prefix)
		if !part && bytes.Compare(prefix, start) < 0 {
			return nil // the whole bucket is before the span
		}
		if !part {
			from = nil
		}
		t, found, err := tx.bucket(prefix)
		if err != nil {
			return err
		}
		if !found {
			return damaged("the bucket with prefix %x is missing", prefix)
		}
		if len(from) > 0 {
			return tx.scanPart(ctx, t, from, span.Prefix[n:], func(c *cursor) error { return fn(prefix, c) })
		}
		var got sum
		err = t.each(nil, func(c *cursor) error {
			if got.count%1024 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			got.add(c.entry())
			return fn(prefix, c)
		})
		if err == nil && got != want {
			err = damaged("the bucket with prefix %x has %d claims that are not the %d that were written", prefix, got.count, want.count)
		}
		return err
	})
}

// scanPart visits the claims of one bucket whose tails are at least from and begin with prefix.
func (tx *readTx) scanPart(ctx context.Context, t tree, from, prefix []byte, fn func(c *cursor) error) error {
	seen := 0
	err := t.each(from, func(c *cursor) error {
		if !bytes.HasPrefix(c.key(), prefix) {
			return errEnough
		}
		if seen++; seen%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		return fn(c)
	})
	return enough(err)
}

// errEnough ends a walk early; fn's own errors are passed on as they are.
var errEnough = errors.New("enough")

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
