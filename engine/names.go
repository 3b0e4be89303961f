package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/weekbucket"
)

// names is the store's table of scopes and topics: a number for each, so that records and journal
// entries carry numbers. The batch that first uses the number of a name writes the name. With the
// first use of a number in a week, its batch also notes the number for that week, and whether it is
// used as a scope only. A number is free again when no retained week uses it, and is then assigned
// to another name. A week no longer uses the number of a scope when the scope does not retain that
// week, unless a topic of the week has the same name.
//
// Numbers of dropped weeks may still be in the journal, in snapshots, and in claims that a reader
// has just read. They are not mistaken for those of a later name: journal and snapshots contain the
// week with each number, and weeks before the oldest retained one are ignored; where only a scope
// has dropped the week, the journal says so (journalDropped). Readers check the week after they
// have looked a number up (finder.readKept).
type names struct {
	mu   sync.RWMutex // guards refs; no I/O under it
	refs map[string]uint64
	list atomic.Pointer[[]atomic.Pointer[string]] // by number; nil for one that is free

	// The committer's own.
	free   []uint64 // numbers below the length of list that are free
	used   map[weekbucket.Week]*refSet
	scopes map[weekbucket.Week]*refSet // those of used that no topic has
	legacy *weekbucket.Week            // of a store without notes of weeks: the newest week with claims

	// The last claim: most claims have the scope, topic and week of the one before. The week has
	// notes of both.
	recent struct {
		scope, topic string
		week         weekbucket.Week
		s, t         uint64
	}
}

// A role is the use of a name in a claim.
type role bool

const (
	asScope role = true
	asTopic role = false
)

// usedAsScope is the value of a note if no topic has the name. Any other note has an empty value.
var usedAsScope = []byte{'s'}

// A refSet is a set of numbers, a bit for each up to the largest one.
type refSet struct{ bits []uint64 }

func (s *refSet) has(ref uint64) bool {
	word := ref / 64
	return word < uint64(len(s.bits)) && s.bits[word]&(1<<(ref%64)) != 0
}

func (s *refSet) add(ref uint64) {
	s.grow(int(ref/64) + 1)
	s.bits[ref/64] |= 1 << (ref % 64)
}

func (s *refSet) addAll(other *refSet) {
	s.grow(len(other.bits))
	for i, bits := range other.bits {
		s.bits[i] |= bits
	}
}

func (s *refSet) remove(ref uint64) {
	if s.has(ref) {
		s.bits[ref/64] &^= 1 << (ref % 64)
	}
}

func (s *refSet) grow(words int) {
	if more := words - len(s.bits); more > 0 {
		s.bits = append(s.bits, make([]uint64, more)...)
	}
}

func newNames() *names {
	n := &names{refs: make(map[string]uint64), used: make(map[weekbucket.Week]*refSet), scopes: make(map[weekbucket.Week]*refSet)}
	n.list.Store(&[]atomic.Pointer[string]{})
	return n
}

// load reads one entry of the table in its stored form.
func (n *names) load(name string, value []byte) error {
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

// loadUse reads one note of a week in its stored form.
func (n *names) loadUse(key, value []byte) error {
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

// check checks that the loaded table is complete, and finds the free numbers.
func (n *names) check() error {
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
	if n.legacy != nil && len(n.free) > 0 {
		return fmt.Errorf("%w: no name has number %d", storage.ErrDamaged, n.free[0])
	}
	return nil
}

// grow makes the list at least that long. Only the committer changes the list.
func (n *names) grow(size uint64) {
	old := *n.list.Load()
	if uint64(len(old)) >= size {
		return
	}
	if size > uint64(cap(old)) {
		longer := make([]atomic.Pointer[string], len(old), max(size, 2*uint64(cap(old))))
		for i := range old {
			longer[i].Store(old[i].Load())
		}
		old = longer
	}
	list := old[:size] // the slots after the end of old are nil
	n.list.Store(&list)
}

// of returns the set of a week.
func (*names) of(sets map[weekbucket.Week]*refSet, week weekbucket.Week) *refSet {
	set := sets[week]
	if set == nil {
		set = new(refSet)
		sets[week] = set
	}
	return set
}

// claimRefs returns the numbers of a scope and a topic for a claim in a week, and appends the
// writes that record them. Only the committer calls it.
func (n *names) claimRefs(scope, topic string, week weekbucket.Week, writes []storage.StateWrite) (s, t uint64, _ []storage.StateWrite, err error) {
	r := &n.recent
	if r.scope == scope && r.topic == topic && r.week == week && scope != "" {
		return r.s, r.t, writes, nil
	}
	if s, writes, err = n.ref(scope, asScope, week, writes); err != nil {
		return 0, 0, writes, err
	}
	if t, writes, err = n.ref(topic, asTopic, week, writes); err != nil {
		return 0, 0, writes, err
	}
	r.scope, r.topic, r.week, r.s, r.t = scope, topic, week, s, t
	return s, t, writes, nil
}

// ref returns the number of a name for a claim in a week, and appends the writes that record it. If
// the name has no number, it assigns one. Only the committer calls it.
func (n *names) ref(name string, as role, week weekbucket.Week, writes []storage.StateWrite) (uint64, []storage.StateWrite, error) {
	ref, known := n.refs[name]
	if !known {
		var err error
		if ref, err = n.assign(name); err != nil {
			return 0, writes, err
		}
		writes = append(n.convert(writes), nameWrite(name, binary.AppendUvarint(nil, ref)))
	}
	used, only := n.of(n.used, week), n.of(n.scopes, week)
	if !used.has(ref) || as == asTopic && only.has(ref) {
		writes = n.note(ref, as, week, n.convert(writes))
	}
	return ref, writes, nil
}

// note records that claims of a week use a number.
func (n *names) note(ref uint64, as role, week weekbucket.Week, writes []storage.StateWrite) []storage.StateWrite {
	used, only := n.of(n.used, week), n.of(n.scopes, week)
	switch there := used.has(ref); {
	case !there && as == asScope:
		used.add(ref)
		only.add(ref)
		return append(writes, useWrite(week, ref, usedAsScope))
	case !there || as == asTopic && only.has(ref):
		used.add(ref)
		only.remove(ref)
		return append(writes, useWrite(week, ref, []byte{}))
	}
	return writes
}

// assign assigns a free number to a name.
func (n *names) assign(name string) (ref uint64, err error) {
	if len(n.refs) >= limits.Names {
		return 0, fmt.Errorf("%w: retained weeks refer to %d distinct scopes and topics, %q is one too many: keep fewer weeks (Options.RetentionWeeks), or reuse the names of instances", ErrLimit, len(n.refs), name)
	}
	if last := len(n.free) - 1; last >= 0 {
		ref, n.free = n.free[last], n.free[:last]
	} else {
		ref = uint64(len(*n.list.Load()))
		n.grow(ref + 1)
	}
	(*n.list.Load())[ref].Store(&name)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refs[name] = ref
	return ref, nil
}

// convert appends the writes that add notes of weeks to a store of an older format: all its names
// are recorded for the newest week with claims. Weeks are dropped in order, so that no name is
// freed before all claims made without notes are removed.
func (n *names) convert(writes []storage.StateWrite) []storage.StateWrite {
	if n.legacy == nil {
		return writes
	}
	week := *n.legacy
	n.legacy = nil
	writes = append(writes, storage.StateWrite{Key: keyNames, Value: []byte{}})
	for _, ref := range n.refs {
		writes = n.note(ref, asTopic, week, writes)
	}
	return writes
}

func (n *names) forgetRecent() { n.recent.scope = "" }

func nameWrite(name string, value []byte) storage.StateWrite {
	return storage.StateWrite{Key: append([]byte{stateName}, name...), Value: value}
}

func useWrite(week weekbucket.Week, ref uint64, value []byte) storage.StateWrite {
	return storage.StateWrite{Key: binary.BigEndian.AppendUint16(week.AppendKey([]byte{stateUse}), uint16(ref)), Value: value}
}

// count returns the number of names.
func (n *names) count() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.refs)
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
	if ref < uint64(len(list)) {
		if name := list[ref].Load(); name != nil {
			return *name, nil
		}
	}
	return "", fmt.Errorf("%w: no name has number %d", storage.ErrDamaged, ref)
}
