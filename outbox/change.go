package outbox

import (
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A change is the change of a batch to the store, once its outcome is known.
type change struct {
	deleted [][]byte
	put     []engine.KeyValue
	parked  []*item
	gone    entry.Gone // counts to add
}

// apply writes the change. It may run again, in another transaction.
func (c *change) apply(tx *engine.Tx) error {
	space := driver.TxIn(tx, entry.Space)
	for _, key := range c.deleted {
		if err := space.Delete(key); err != nil {
			return err
		}
	}
	for _, kv := range c.put {
		if err := space.Put(kv.Key, kv.Value); err != nil {
			return err
		}
	}
	if c.gone == (entry.Gone{}) {
		return nil
	}
	return updateGone(tx, func(g *entry.Gone) error {
		for n, i := range c.parked {
			if err := space.Put(entry.ParkedKey(i.Entry.ID, g.Parked+uint64(n)+1), i.Entry.Append(nil)); err != nil {
				return err
			}
		}
		g.Entries += c.gone.Entries
		g.Delayed += c.gone.Delayed
		g.Parked += c.gone.Parked
		g.Bytes += c.gone.Bytes
		return nil
	})
}

// updateGone changes the counts of removed entries.
func updateGone(tx *engine.Tx, fn func(g *entry.Gone) error) error {
	value, found, err := driver.TxIn(tx, entry.Space).Get(entry.GoneKey)
	if err != nil {
		return err
	}
	var g entry.Gone
	if found {
		if g, err = entry.ParseGone(value); err != nil {
			return damaged(err)
		}
	}
	if err := fn(&g); err != nil {
		return err
	}
	return driver.TxIn(tx, entry.Space).Put(entry.GoneKey, g.Append(nil))
}

func (c *change) remove(i *item) {
	c.deleted = append(c.deleted, i.key)
	if i.delayed() {
		c.gone.Delayed++
	}
}
