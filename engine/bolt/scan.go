package bolt

import (
	"bytes"
	"context"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
)

// buckets calls fn with each bucket's prefix, in key order. It reads the sums, because these have
// checksums.
func (tx *readTx) buckets(fn func(prefix []byte, s sum) error) error {
	t, err := tx.dir(sumsDir)
	if err != nil {
		return err
	}
	return t.Each([]byte{claimSpace}, func(c *pages.Cursor) error {
		if c.Key()[0] != claimSpace {
			return pages.ErrStop
		}
		s, err := parseSum(c.Record())
		if err != nil {
			return err
		}
		return fn(c.Key()[1:], s)
	})
}

// scan visits the claims in the span in key order. It compares each completely read bucket with its
// sum.
func (tx *readTx) scan(ctx context.Context, span storage.Span, fn func(prefix []byte, c *pages.Cursor) error) error {
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
			return pages.ErrStop
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
			return pages.Damaged("the bucket with prefix %x is missing", prefix)
		}
		if len(from) > 0 {
			return tx.scanPart(ctx, t, from, span.Prefix[n:], func(c *pages.Cursor) error { return fn(prefix, c) })
		}
		var got sum
		err = t.Each(nil, func(c *pages.Cursor) error {
			if got.count%1024 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			got.add(c.Entry())
			return fn(prefix, c)
		})
		if err == nil && got != want {
			err = pages.Damaged("the bucket with prefix %x has %d claims that are not the %d that were written", prefix, got.count, want.count)
		}
		return err
	})
}

// scanPart visits the claims of one bucket whose tails are at least from and begin with prefix.
func (tx *readTx) scanPart(ctx context.Context, t pages.Tree, from, prefix []byte, fn func(c *pages.Cursor) error) error {
	seen := 0
	return t.Each(from, func(c *pages.Cursor) error {
		if !bytes.HasPrefix(c.Key(), prefix) {
			return pages.ErrStop
		}
		if seen++; seen%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		return fn(c)
	})
}
