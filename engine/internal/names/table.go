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

// A Table has a number for each scope and topic, which records and journal entries contain instead
// of the name. The batch that first uses a number also writes the name. The batch that first uses a
// number in a week also writes a note for that week, which says whether only scopes use it. A
// number that no retained week uses is free, and may be assigned to another name. When a scope no
// longer retains a week, the week no longer uses its number, unless a topic of the week has the
// same name.
//
// Numbers of dropped weeks may still be in the journal, in snapshots, and in claims that were just
// read. They are not mistaken for numbers of later names. Journal and snapshots contain the week
// with each number, and weeks before the oldest retained one are ignored; if only a scope has
// dropped a week, the journal records that. Readers check the week after they have looked up a
// number with Name.
//
// Only the committer changes the table; any goroutine may call Name, Number and Count.
type Table struct {
	mu   sync.RWMutex // guards refs; not held during I/O
	refs map[string]uint64
	list atomic.Pointer[[]atomic.Pointer[string]] // names by number; nil if the number is free

	// The fields below are used by the committer only.
	free   []uint64 // free numbers less than the length of list
	used   map[weekbucket.Week]*refSet
	scopes map[weekbucket.Week]*refSet // the numbers of used that no topic has
	limit  error                       // wrapped by the error for too many names

	// Most claims have the scope, topic and week of the previous claim. These are saved here; the
	// week has notes of both.
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
	kindUse  = 'u' // + a week and the number of a name that claims of the week use: "s", or nothing if a topic has the name
)

// usedAsScope is the value of a note if no topic has the name. Any other note has an empty value.
var usedAsScope = []byte{'s'}

// New returns an empty table. Errors for too many names wrap limit.
func New(limit error) *Table {
	n := &Table{limit: limit, refs: make(map[string]uint64), used: make(map[weekbucket.Week]*refSet), scopes: make(map[weekbucket.Week]*refSet)}
	n.list.Store(&[]atomic.Pointer[string]{})
	return n
}

// grow grows the list to at least size. Only the committer changes the list.
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
	list := old[:size] // the elements after the end of old are nil
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
