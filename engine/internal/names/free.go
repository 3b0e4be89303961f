package names

import (
	"slices"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Release frees the names that only weeks before oldest used. It appends writes until there are
// limit of them, and reports whether there is more to do. The claims of these weeks must have been
// durably removed.
func (n *Table) Release(oldest weekbucket.Week, writes []storage.StateWrite, limit int) (_ []storage.StateWrite, more bool) {
	n.forgetRecent()
	var retained refSet
	for week, used := range n.used {
		if week >= oldest {
			retained.addAll(used)
		}
		for ref := uint64(0); week < oldest && ref < limits.Names; ref++ {
			if !used.has(ref) {
				continue
			}
			if len(writes) >= limit {
				return writes, true
			}
			used.remove(ref)
			writes = append(writes, useWrite(week, ref, nil))
		}
		if week < oldest {
			delete(n.used, week)
			delete(n.scopes, week)
		}
	}
	list := *n.list.Load()
	for ref := range list {
		name := list[ref].Load()
		if name == nil || retained.has(uint64(ref)) {
			continue
		}
		if len(writes) >= limit {
			return writes, true
		}
		writes = n.remove(*name, uint64(ref), writes)
	}
	n.sortFree()
	return writes, false
}

// ReleaseScope removes the notes of a scope in weeks before oldest, and frees its name if no week
// uses it any more. The scope's claims in these weeks must have been durably removed. It returns
// the scope's number and the weeks whose notes it has removed.
func (n *Table) ReleaseScope(scope string, oldest weekbucket.Week, writes []storage.StateWrite) (ref uint64, weeks []weekbucket.Week, _ []storage.StateWrite) {
	ref, known := n.refs[scope]
	if !known {
		return 0, nil, writes
	}
	retained := false
	for week, used := range n.used {
		switch {
		case !used.has(ref):
		case week >= oldest || !n.of(n.scopes, week).has(ref):
			retained = true
		default:
			weeks = append(weeks, week)
		}
	}
	n.forgetRecent()
	for _, week := range weeks {
		n.used[week].remove(ref)
		n.scopes[week].remove(ref)
		writes = append(writes, useWrite(week, ref, nil))
	}
	if !retained && len(weeks) > 0 {
		writes = n.remove(scope, ref, writes)
		n.sortFree()
	}
	return ref, weeks, writes
}

// Keeps reports whether a week from oldest on, or a topic, uses the scope's name.
func (n *Table) Keeps(scope string, oldest weekbucket.Week) bool {
	ref, known := n.refs[scope]
	for week, used := range n.used {
		if known && used.has(ref) && (week >= oldest || !n.of(n.scopes, week).has(ref)) {
			return true
		}
	}
	return false
}

// BucketsIn calls fn for each bucket in damage that may have claims. Since a topic may have the
// name of a scope, it also calls fn for the names of topics. The note of a use is written with the
// first claim, and removed after all claims.
func (n *Table) BucketsIn(damage *storage.DamageError, fn func(storage.Bucket)) {
	list := *n.list.Load()
	for week, used := range n.used {
		for ref := range list {
			name := list[ref].Load()
			if name == nil || !used.has(uint64(ref)) {
				continue
			}
			if b := (storage.Bucket{Scope: *name, Week: week}); damage.Concerns(b) {
				fn(b)
			}
		}
	}
}

// remove frees the number of a name.
func (n *Table) remove(name string, ref uint64, writes []storage.StateWrite) []storage.StateWrite {
	n.mu.Lock()
	delete(n.refs, name)
	n.mu.Unlock()
	(*n.list.Load())[ref].Store(nil)
	n.free = append(n.free, ref)
	return append(writes, nameWrite(name, nil))
}

// sortFree ensures that the least number is assigned first.
func (n *Table) sortFree() {
	slices.SortFunc(n.free, func(a, b uint64) int { return int(b) - int(a) })
}
