package runs

import (
	"slices"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
)

// A list has tables, the newer first. It is immutable.
type list struct {
	coverage coverage
	index    *Index
	groups   []group
	borders  [][]byte          // keys at which parts begin, the first excepted
	parts    []listPart        // one more than borders
	drops    map[string]uint64 // prefix of a bucket -> entries with a lower sequence number may be dropped
	refs     atomic.Int64      // of look-ups, and one while it is the list of the index
}

// get returns the record of a key, nil if there is no claim, from the newest table that has an entry
// for it. If the list does not decide that, known is false.
func (l *list) get(key []byte, hash uint32) (record []byte, known bool) {
	// The lines of filters that many groups need are loaded at the same time.
	var tables [32]*table
	groups, absent := l.search(key)
	for len(groups) > 0 {
		some := groups[:min(len(groups), len(tables))]
		groups = groups[len(some):]
		n := 0
		for _, g := range some {
			if t := g.find(key); t != nil {
				tables[n] = t
				n += int(t.filter.first(hash))
			}
		}
		for _, t := range tables[:n] {
			if !t.filter.mayContain(hash) || !t.covers(key) {
				continue
			}
			record, known, err := t.get(key)
			if known && l.mayBeDropped(t, key) {
				return nil, false
			}
			if known || err != nil {
				return record, known
			}
		}
	}
	return nil, absent
}

// mayBeDropped reports whether an entry of a table may be older than a drop of its bucket.
func (l *list) mayBeDropped(t *table, key []byte) bool {
	if len(l.drops) == 0 {
		return false
	}
	prefix, _ := memtable.SplitPrefix(key[1:])
	return t.seq < l.drops[string(prefix)]
}

// release ends a look-up, or the time in which the list is that of the index. After the last one, the
// tables that only this list has are closed.
func (l *list) release() {
	if l.refs.Add(-1) > 0 {
		return
	}
	for _, g := range l.groups {
		g.release()
	}
	l.index.release()
}

// keep removes all tables but some. No place in the order changes.
func (l *list) keep(some func(*table) bool) {
	var groups []group
	newest := 0
	for i, g := range l.groups {
		g = slices.DeleteFunc(slices.Clone(g), func(t *table) bool { return !some(t) })
		if len(g) > 0 {
			groups = append(groups, g)
		}
		if i < l.coverage.newest {
			newest = len(groups)
		}
	}
	l.groups, l.coverage.newest = groups, newest
}

// size returns how much memory the list's tables use.
func (l *list) size() (n uint64) {
	for _, g := range l.groups {
		n += g.size()
	}
	return n
}

// remove removes the tables of some groups.
func (l *list) remove(groups []group) {
	remove := make(map[uint64]bool)
	for _, g := range groups {
		for _, t := range g {
			remove[t.number] = true
		}
	}
	l.keep(func(t *table) bool { return !remove[t.number] })
}

// takeDrops takes over the drops of the list before, and those of the tables, as far as they concern
// the tables.
func (l *list) takeDrops(old *list) {
	l.drops = make(map[string]uint64)
	take := func(drops map[string]uint64) {
		for prefix, seq := range drops {
			if seq > l.drops[prefix] && l.mayHaveOlder(prefix, seq) {
				l.drops[prefix] = seq
			}
		}
	}
	take(old.drops)
	for _, g := range l.groups {
		for _, t := range g {
			take(t.drops)
		}
	}
}

// mayHaveOlder reports whether a bucket may have entries that are older than seq.
func (l *list) mayHaveOlder(prefix string, seq uint64) bool {
	span := spanOf([]byte(prefix))
	return l.coverage.mayLackSome(span) || slices.ContainsFunc(l.groups, func(g group) bool { return g.hasOlder(span, seq) })
}

// addVersion adds tables in the order of a version; nil is one that the list omits. It begins a group
// after the first of these: what follows may be older.
func (l *list) addVersion(tables []*table, levels []int) {
	whole, begin := true, false
	for i, t := range tables {
		begin = begin || i > 0 && levels[i] != levels[i-1]
		if t != nil {
			l.addTable(t, begin)
			begin = false
		} else if whole {
			whole, begin = false, true
		}
		if whole {
			l.coverage.newest = len(l.groups)
		}
	}
}

// addTable adds a table to the last group, or to a new one if it overlaps.
func (l *list) addTable(t *table, begin bool) {
	if last := len(l.groups) - 1; last >= 0 && !begin {
		if g := l.groups[last].with(t); g != nil {
			l.groups[last] = g
			return
		}
	}
	l.groups = append(l.groups, group{t})
}
