package names

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A Table is the store's table of scopes and topics: a number for each, so that records and journal
// entries carry numbers. The batch that first uses the number of a name writes the name. With the
// first use of a number in a week, its batch also notes the number for that week, and whether it is
// used as a scope only. A number is free again when no retained week uses it, and is then assigned
// to another name. A week no longer uses the number of a scope when the scope does not retain that
// week, unless a topic of the week has the same name.
//
// Numbers of dropped weeks may still be in the journal, in snapshots, and in claims that a reader
// has just read. They are not mistaken for those of a later name: journal and snapshots contain the
// week with each number, and weeks before the oldest retained one are ignored; where only a scope
// has dropped the week, the journal says so. Readers check the week after they have looked a number
// up (Name).
//
// Only the committer changes it; any goroutine may call Name, Number and Count.
type Table struct {
	mu   sync.RWMutex // guards refs; no I/O under it
	refs map[string]uint64
	list atomic.Pointer[[]atomic.Pointer[string]] // by number; nil for one that is free

	// The committer's own.
	free   []uint64 // numbers below the length of list that are free
	used   map[weekbucket.Week]*refSet
	scopes map[weekbucket.Week]*refSet // those of used that no topic has
	limit  error                       // of a name too many

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

// The kinds of the keys of the table, their first bytes.
const (
	kindName = 'n' // + a scope or topic: its number
	kindUse  = 'u' // + a week and the number of a name that claims of that week use: "s", or nothing if a topic has it
)

// usedAsScope is the value of a note if no topic has the name. Any other note has an empty value.
var usedAsScope = []byte{'s'}

// New returns an empty table. The error of a name too many wraps limit.
func New(limit error) *Table {
	n := &Table{limit: limit, refs: make(map[string]uint64), used: make(map[weekbucket.Week]*refSet), scopes: make(map[weekbucket.Week]*refSet)}
	n.list.Store(&[]atomic.Pointer[string]{})
	return n
}

// grow makes the list at least that long. Only the committer changes the list.
func (n *Table) grow(size uint64) {
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
func (*Table) of(sets map[weekbucket.Week]*refSet, week weekbucket.Week) *refSet {
	set := sets[week]
	if set == nil {
		set = new(refSet)
		sets[week] = set
	}
	return set
}

// ClaimRefs returns the numbers of a scope and a topic for a claim in a week, and appends the
// writes that record them.
func (n *Table) ClaimRefs(scope, topic string, week weekbucket.Week, writes []storage.StateWrite) (s, t uint64, _ []storage.StateWrite, err error) {
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

// ScopeRef returns the number of a scope for a claim in a week, and appends the writes that record it.
func (n *Table) ScopeRef(scope string, week weekbucket.Week, writes []storage.StateWrite) (uint64, []storage.StateWrite, error) {
	return n.ref(scope, asScope, week, writes)
}

// ref returns the number of a name for a claim in a week, and appends the writes that record it. If
// the name has no number, it assigns one.
func (n *Table) ref(name string, as role, week weekbucket.Week, writes []storage.StateWrite) (uint64, []storage.StateWrite, error) {
	ref, known := n.refs[name]
	if !known {
		var err error
		if ref, err = n.assign(name); err != nil {
			return 0, writes, err
		}
		writes = append(writes, nameWrite(name, binary.AppendUvarint(nil, ref)))
	}
	used, only := n.of(n.used, week), n.of(n.scopes, week)
	if !used.has(ref) || as == asTopic && only.has(ref) {
		writes = n.note(ref, as, week, writes)
	}
	return ref, writes, nil
}

// note records that claims of a week use a number.
func (n *Table) note(ref uint64, as role, week weekbucket.Week, writes []storage.StateWrite) []storage.StateWrite {
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
func (n *Table) assign(name string) (ref uint64, err error) {
	if len(n.refs) >= limits.Names {
		return 0, fmt.Errorf("%w: retained weeks refer to %d distinct scopes and topics, %q is one too many: keep fewer weeks (Options.RetentionWeeks), or reuse the names of instances", n.limit, len(n.refs), name)
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

func (n *Table) forgetRecent() { n.recent.scope = "" }

func nameWrite(name string, value []byte) storage.StateWrite {
	return storage.StateWrite{Key: append([]byte{kindName}, name...), Value: value}
}

func useWrite(week weekbucket.Week, ref uint64, value []byte) storage.StateWrite {
	return storage.StateWrite{Key: binary.BigEndian.AppendUint16(week.AppendKey([]byte{kindUse}), uint16(ref)), Value: value}
}

// Count returns the number of names.
func (n *Table) Count() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.refs)
}

// Number returns the number of a name, if it has one.
func (n *Table) Number(name string) (uint64, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	ref, ok := n.refs[name]
	return ref, ok
}

// Name returns the name with the given number.
func (n *Table) Name(ref uint64) (string, error) {
	list := *n.list.Load()
	if ref < uint64(len(list)) {
		if name := list[ref].Load(); name != nil {
			return *name, nil
		}
	}
	return "", fmt.Errorf("%w: no name has number %d", storage.ErrDamaged, ref)
}
