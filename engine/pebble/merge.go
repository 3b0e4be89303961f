package pebble

import (
	"bytes"
	"context"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// claims calls fn with the tables in memory, the newer first, and with what Pebble's tables have
// under span, all of one moment. look is called in that moment, under the lock of the tables; fn is
// called under none.
func (s *Store) claims(span pebble.KeyRange, look func(tables []*table), fn func(tables []*table, c *cursor) error) error {
	var tables []*table
	var c *cursor
	err := s.unsealed.hold(func(held []*table) (err error) {
		tables = held
		look(held)
		c, err = s.newCursor(span)
		return err
	})
	if err != nil {
		return err
	}
	return s.use(c, func(c *cursor) error { return fn(tables, c) })
}

// Scan implements storage.Store. It sorts what the span selects in memory first.
func (s *Store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	var at moment
	freeze := func(tables []*table) { at = momentOf(tables) }
	return s.claims(keyRange(claimSpace, span), freeze, func(_ []*table, c *cursor) error {
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

// merge calls fn for each claim that is in memory or at c and after it, in key order. If both have
// a key, memory is newer.
func merge(m *sorted, c *cursor, fn func(key, record []byte) error) error {
	var key, record []byte
	ok := c.do(c.it.First)
	for _, r := range m.refs {
		key, record = m.at(key[:0], r)
		order := 1
		for ; ok; ok = c.do(c.it.Next) {
			if order = bytes.Compare(c.it.Key(), key); order >= 0 {
				break
			}
			if err := fn(c.it.Key()[1:], c.it.Value()); err != nil {
				return err
			}
		}
		if c.err != nil {
			return c.err
		}
		if record != nil {
			if err := fn(key[1:], record); err != nil {
				return err
			}
		}
		if ok && order == 0 {
			ok = c.do(c.it.Next)
		}
	}
	for ; ok; ok = c.do(c.it.Next) {
		if err := fn(c.it.Key()[1:], c.it.Value()); err != nil {
			return err
		}
	}
	return c.err
}

// Buckets implements storage.Store. It seeks from bucket to bucket.
func (s *Store) Buckets(fn func(storage.Bucket) error) error {
	var found, unsealed []string
	look := func(tables []*table) { unsealed = prefixesOf(tables) }
	err := s.claims(prefixSpan([]byte{claimSpace}), look, func(tables []*table, c *cursor) error {
		for _, prefix := range unsealed {
			if s.unsealed.holdsSome(tables, prefix) {
				found = append(found, prefix)
			}
		}
		for ok := c.do(c.it.First); ok; {
			prefix, _ := splitPrefix(c.it.Key()[1:])
			own := string(prefix)
			if some, err := s.seen(tables, own, c); err != nil {
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
// does not say to be removed.
func (s *Store) seen(tables []*table, prefix string, c *cursor) (bool, error) {
	start := spaced(claimSpace, []byte(prefix))
	for ok := c.it.Valid(); ok && bytes.HasPrefix(c.it.Key(), start); ok = c.do(c.it.Next) {
		if !s.unsealed.removes(tables, c.it.Key()[1:]) {
			return true, c.err
		}
	}
	return false, c.err
}

// removes reports whether the newest of the tables that knows a key says that it was removed.
func (m *unsealed) removes(tables []*table, key []byte) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range tables {
		if record, known := t.get(key); known {
			return record == nil
		}
	}
	return false
}

// holdsSome reports whether the tables hold a claim of a bucket. It looks at claims only where the
// newer table removes some of those that the older one may hold.
func (m *unsealed) holdsSome(tables []*table, prefix string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	removed := 0
	for i, t := range tables {
		n, ok := t.index[prefix]
		if !ok {
			continue
		}
		b := &t.buckets[n]
		if b.live > 0 && (removed == 0 || t.holdsBeside(tables[:i], n)) {
			return true
		}
		removed += b.removed
	}
	return false
}

// holdsBeside reports whether a table holds a claim of a bucket that the newer ones do not remove.
func (t *table) holdsBeside(newer []*table, bucket uint32) bool {
	key := []byte(t.buckets[bucket].prefix)
	prefix := len(key)
	for off := uint32(0); off < uint32(len(t.arena)); {
		e := t.entry(off)
		off = e.end
		if e.bucket != bucket {
			continue
		}
		key = append(key[:prefix], e.tail...)
		if record, known := t.get(key); !known || record == nil {
			continue
		}
		gone := false
		for _, n := range newer {
			if record, known := n.get(key); known {
				gone = record == nil
				break
			}
		}
		if !gone {
			return true
		}
	}
	return false
}

// bytesOf is how many bytes the journal keeps for the claims of a bucket that are in memory.
func (m *unsealed) bytesOf(prefix string) (n uint64) {
	_ = m.hold(func(tables []*table) error {
		for _, t := range tables {
			if i, ok := t.index[prefix]; ok {
				n += t.buckets[i].bytes
			}
		}
		return nil
	})
	return n
}
