package pebble

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// Claim implements storage.Store. What is not in memory at this moment was in tables before.
func (s *Store) Claim(key []byte) ([]byte, bool, error) {
	if err := s.fault.get(); err != nil {
		return nil, false, err
	}
	if record, known := s.unsealed.get(key); known {
		return record, record != nil, nil
	}
	return s.get(claimSpace, key)
}

// State implements storage.Store.
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

// ScanState implements storage.Store.
func (s *Store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return s.each(keyRange(stateSpace, span), func(it *pebble.Iterator) error { return fn(it.Key()[1:], it.Value()) })
}

// Journal implements storage.Store.
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

// keyRange is the range of what a span selects in one of the spaces.
func keyRange(space byte, span storage.Span) pebble.KeyRange {
	return pebble.KeyRange{Start: spaced(space, span.Start()), End: successor(spaced(space, span.Prefix))}
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
