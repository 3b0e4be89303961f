package names

import (
	"bytes"
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
)

// A Store stores the table.
type Store interface {
	ScanState(span storage.Span, fn func(key, value []byte) error) error
}

// Load reads the table from a store.
func (n *Table) Load(store Store) error {
	err := store.ScanState(storage.Span{Prefix: []byte{kindName}}, func(key, value []byte) error { return n.load(string(key[1:]), value) })
	if err != nil {
		return err
	}
	if err := store.ScanState(storage.Span{Prefix: []byte{kindUse}}, n.loadUse); err != nil {
		return err
	}
	return n.check()
}

// load parses an entry of the table.
func (n *Table) load(name string, value []byte) error {
	d := decode.Decoder{Rest: value}
	ref := d.Uvarint()
	if d.Bad || len(d.Rest) != 0 || ref >= limits.Names || name == "" {
		return fmt.Errorf("%w: number of name %q is %x", storage.ErrDamaged, name, value)
	}
	n.grow(ref + 1)
	slot := &(*n.list.Load())[ref]
	if other := slot.Load(); other != nil {
		return fmt.Errorf("%w: names %q and %q both have number %d", storage.ErrDamaged, *other, name, ref)
	}
	slot.Store(&name)
	n.refs[name] = ref
	return nil
}

// loadUse parses a note of a week.
func (n *Table) loadUse(key, value []byte) error {
	d := decode.Decoder{Rest: key}
	_, week, ref := d.Byte(), d.Week(), d.Uint16()
	only := bytes.Equal(value, usedAsScope)
	if d.Bad || len(d.Rest) != 0 || !only && len(value) != 0 {
		return fmt.Errorf("%w: note %x of a name's use is %x", storage.ErrDamaged, key, value)
	}
	n.of(n.used, week).add(uint64(ref))
	if only {
		n.of(n.scopes, week).add(uint64(ref))
	}
	return nil
}

// check returns an error if the loaded table is incomplete, and collects the free numbers.
func (n *Table) check() error {
	list := *n.list.Load()
	for week, used := range n.used {
		for ref := range uint64(limits.Names) {
			if used.has(ref) && (ref >= uint64(len(list)) || list[ref].Load() == nil) {
				return fmt.Errorf("%w: %s uses number %d, which has no name", storage.ErrDamaged, week, ref)
			}
		}
	}
	for ref := range list {
		if list[ref].Load() == nil {
			n.free = append(n.free, uint64(ref))
		}
	}
	return nil
}
