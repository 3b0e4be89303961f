package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
)

// MaxNames caps the distinct scopes and topics that one store has seen, together. An event that would add one more is
// refused with ErrLimit.
const MaxNames = 1 << 16

// names is the store's table of scopes and topics: a number for each, given at its first use and kept for ever, so
// that records and journal entries carry numbers. The table is written with the batch that uses a number first.
type names struct {
	mu   sync.RWMutex // guards refs; no I/O under it
	refs map[string]uint64
	list atomic.Pointer[[]string] // by number; only grows

	last struct { // the committer's: what ref was asked for last, as most events have the scope and topic of the one before
		name [2]string
		ref  [2]uint64
		turn int
	}
}

func newNames() *names {
	n := &names{refs: make(map[string]uint64)}
	n.list.Store(new([]string))
	return n
}

// load takes one entry of the table as it is on disk.
func (n *names) load(name string, value []byte) error {
	d := decoder{rest: value}
	ref := d.uvarint()
	if d.err != nil || len(d.rest) != 0 || ref >= MaxNames {
		return fmt.Errorf("%w: number of name %q is %x", ErrDamaged, name, value)
	}
	list := *n.list.Load()
	for uint64(len(list)) <= ref {
		list = append(list, "")
	}
	if list[ref] != "" {
		return fmt.Errorf("%w: names %q and %q both have number %d", ErrDamaged, list[ref], name, ref)
	}
	list[ref] = name
	n.refs[name] = ref
	n.list.Store(&list)
	return nil
}

// check says whether the loaded table is whole.
func (n *names) check() error {
	for ref, name := range *n.list.Load() {
		if name == "" {
			return fmt.Errorf("%w: no name has number %d", ErrDamaged, ref)
		}
	}
	return nil
}

// ref returns the number of a name and, if the name is new, gives it one and appends the write that keeps it. Only the
// committer calls it.
func (n *names) ref(name string, writes []StateWrite) (uint64, []StateWrite, error) {
	for i := range n.last.name {
		if n.last.name[i] == name && name != "" {
			return n.last.ref[i], writes, nil
		}
	}
	if ref, ok := n.refs[name]; ok {
		n.remember(name, ref)
		return ref, writes, nil
	}
	old := *n.list.Load()
	if len(old) >= MaxNames {
		return 0, writes, fmt.Errorf("%w: %d distinct scopes and topics are in the store, which keeps them for ever; %q is one too many: give instances numbers that come again, or begin a new store", ErrLimit, len(old), name)
	}
	ref := uint64(len(old))
	list := append(old, name)
	n.mu.Lock()
	n.refs[name] = ref
	n.mu.Unlock()
	n.list.Store(&list)
	return ref, append(writes, StateWrite{Key: append([]byte{stateName}, name...), Value: binary.AppendUvarint(nil, ref)}), nil
}

func (n *names) remember(name string, ref uint64) {
	n.last.turn ^= 1
	n.last.name[n.last.turn], n.last.ref[n.last.turn] = name, ref
}

// number returns the number of a name, if it has one.
func (n *names) number(name string) (uint64, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	ref, ok := n.refs[name]
	return ref, ok
}

// name returns the name with the given number.
func (n *names) name(ref uint64) (string, error) {
	list := *n.list.Load()
	if ref >= uint64(len(list)) {
		return "", fmt.Errorf("%w: no name has number %d", ErrDamaged, ref)
	}
	return list[ref], nil
}
