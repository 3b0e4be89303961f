package pebble

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine"
)

// Claim implements engine.Store.
func (s *Store) Claim(key []byte) ([]byte, bool, error) { return s.get(claimSpace, key) }

// State implements engine.Store.
func (s *Store) State(key []byte) ([]byte, bool, error) { return s.get(stateSpace, key) }

func (s *Store) get(space byte, key []byte) (value []byte, found bool, err error) {
	k := spaced(space, key)
	err = s.fault.lookUp(func() error {
		v, closer, err := s.db.Get(k)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return asRead(err)
		}
		value, found = append(make([]byte, 0, len(v)), v...), true
		return closer.Close()
	})
	if err != nil {
		return nil, false, err
	}
	return value, found, nil
}

// ScanState implements engine.Store.
func (s *Store) ScanState(prefix []byte, fn func(key, value []byte) error) error {
	span := prefixSpan(spaced(stateSpace, prefix))
	return s.each(span, func(it *pebble.Iterator) error { return fn(it.Key()[1:], it.Value()) })
}

// Journal implements engine.Store.
func (s *Store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	span := pebble.KeyRange{Start: journalKey(max(from, s.trimmed.Load())), End: []byte{journalSpace + 1}}
	return s.each(span, func(it *pebble.Iterator) error {
		seq, err := parseSeq(it.Key()[1:])
		if err != nil {
			return err
		}
		return fn(seq, it.Value())
	})
}

// Buckets implements engine.Store. It seeks from bucket to bucket.
func (s *Store) Buckets(fn func(engine.Bucket) error) error {
	return s.iterate(prefixSpan([]byte{claimSpace}), func(c *cursor) error {
		for ok := c.do(c.it.First); ok; {
			b, _, err := engine.SplitKey(c.it.Key()[1:])
			if err != nil {
				return err
			}
			if err := fn(b); err != nil {
				return err
			}
			next := bucketSpan(b).End
			ok = c.do(func() bool { return c.it.SeekGE(next) })
		}
		return nil
	})
}

// Scan implements engine.Store.
func (s *Store) Scan(ctx context.Context, started func(), fn func(key, record []byte) error) error {
	return s.iterate(prefixSpan([]byte{claimSpace}), func(c *cursor) error {
		if started != nil {
			started()
		}
		for ok := c.do(c.it.First); ok; ok = c.do(c.it.Next) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fn(c.it.Key()[1:], c.it.Value()); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

func prefixSpan(prefix []byte) pebble.KeyRange {
	return pebble.KeyRange{Start: prefix, End: successor(prefix)}
}

func (s *Store) each(span pebble.KeyRange, fn func(*pebble.Iterator) error) error {
	return s.iterate(span, func(c *cursor) error {
		for ok := c.do(c.it.First); ok; ok = c.do(c.it.Next) {
			if err := fn(c.it); err != nil {
				return err
			}
		}
		return nil
	})
}
