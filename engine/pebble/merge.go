package pebble

import (
	"bytes"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
)

// merge calls fn for each claim in memory and for each claim at or after c, in key order. If both
// have a key, the claim in memory is newer.
func merge(m *memtable.Sorted, c *cursor, fn func(key, record []byte) error) error {
	ok := c.do(c.it.First)
	for key, record := range m.All(claimSpace) {
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
