package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Claim returns a copy of the record under key.
func (s *Store) Claim(key []byte) (record []byte, found bool, err error) {
	_, tail, err := storage.SplitKey(key)
	if err != nil {
		return nil, false, err
	}
	err = s.view(func(m *moment) error {
		t, exists, err := m.bucket(key[:len(key)-len(tail)])
		if err != nil || !exists {
			return err
		}
		record, found, err = t.get(tail)
		return err
	})
	return record, found, err
}

// State returns a copy of the value under key.
func (s *Store) State(key []byte) (value []byte, found bool, err error) {
	err = s.view(func(m *moment) error {
		t, err := m.dir(stateDir)
		if err != nil {
			return err
		}
		value, found, err = t.get(stateKey(key))
		return err
	})
	return value, found, err
}

// ScanState calls fn for each state in the span, as of one moment.
func (s *Store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	prefix := stateKey(span.Prefix)
	return s.view(func(m *moment) error {
		t, err := m.dir(stateDir)
		if err != nil {
			return err
		}
		err = t.each(stateKey(span.Start()), func(c *cursor) error {
			if !bytes.HasPrefix(c.key(), prefix) {
				return errEnough
			}
			return fn(c.key()[1:], c.record())
		})
		return enough(err)
	})
}

// Buckets calls fn for each bucket that holds a claim, at the cost of its share of the list of
// buckets.
func (s *Store) Buckets(fn func(storage.Bucket) error) error {
	return s.view(func(m *moment) error {
		return m.buckets(func(prefix []byte, _ sum) error {
			b, _, err := storage.SplitKey(prefix)
			if err != nil {
				return err
			}
			return fn(b)
		})
	})
}

// buckets calls fn for each bucket's prefix, in key order. It goes by the sums, which have
// checksums.
func (m *moment) buckets(fn func(prefix []byte, s sum) error) error {
	t, err := m.dir(sumsDir)
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

// Scan calls fn for each claim in the span as of the moment of the call to started. Batches are
// applied meanwhile; the pages that they replace are not used again before the scan has ended, so
// that the file may grow.
func (s *Store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return s.view(func(m *moment) error {
		started()
		key := make([]byte, 0, 256)
		return m.scan(ctx, span, func(prefix []byte, c *cursor) error {
			key = append(append(key[:0], prefix...), c.key()...)
			return fn(key, c.record())
		})
	})
}

// scan visits the claims in the span in key order, and compares each bucket with its sum when it
// has seen it whole.
func (m *moment) scan(ctx context.Context, span storage.Span, fn func(prefix []byte, c *cursor) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := span.Start()
	return m.buckets(func(prefix []byte, want sum) error {
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
		t, found, err := m.bucket(prefix)
		if err != nil {
			return err
		}
		if !found {
			return damaged("the bucket with prefix %x is missing", prefix)
		}
		if len(from) > 0 {
			return m.scanPart(ctx, t, from, span.Prefix[n:], func(c *cursor) error { return fn(prefix, c) })
		}
		var got sum
		err = t.each(nil, func(c *cursor) error {
			if got.count%1024 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			got.add(c.entry())
			return fn(prefix, c)
		})
		if err == nil && got != want && !m.unchecked {
			err = damaged("the bucket with prefix %x holds %d claims that are not the %d that were written", prefix, got.count, want.count)
		}
		return err
	})
}

// scanPart visits the claims of one bucket whose tails are at least from and begin with prefix.
func (m *moment) scanPart(ctx context.Context, t tree, from, prefix []byte, fn func(c *cursor) error) error {
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

// Journal calls fn for each kept entry from batch from on, as of one moment.
func (s *Store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	return s.view(func(m *moment) error {
		t, err := m.dir(journalDir)
		if err != nil {
			return err
		}
		return t.each(journalKey(from), func(c *cursor) error {
			return fn(binary.BigEndian.Uint64(c.key()), c.record())
		})
	})
}

// errEnough ends a walk early; fn's own errors are passed on as they are.
var errEnough = errors.New("enough")

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
