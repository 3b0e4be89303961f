package pebble

import (
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// mirror keeps the index of runs up to date until stop is closed. It begins after the startup: the
// first verdict does not wait for it.
func (c *core) mirror(stop <-chan struct{}) {
	select {
	case <-c.startup.over:
	case <-c.fault.failed:
		return
	}
	for {
		// Whatever it cannot read is looked up in Pebble.
		_ = c.fault.read(func() error { return c.recentRuns.refresh(c.db, stop) })
		select {
		case <-c.recentRuns.changed:
		case <-stop:
			return
		case <-c.fault.failed:
			return
		}
	}
}

// change makes a refresh begin soon.
func (x *runIndex) change() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// deleted is called when Pebble has deleted a table: its space is free when the list lacks it.
func (x *runIndex) deleted(pebble.TableDeleteInfo) { x.change() }

var errRefreshEnded = errors.New("the refresh was ended")

// refresh makes the list that of Pebble's current version. If it fails, the list stays as it is.
// Only one refresh runs at a time.
func (x *runIndex) refresh(db *pebble.DB, stop <-chan struct{}) error {
	select {
	case <-stop:
		return errRefreshEnded
	default:
	}
	x.mu.Lock()
	x.since = 0
	x.mu.Unlock()
	version, err := db.SSTables(pebble.WithKeyRangeFilter([]byte{claimSpace}, []byte{claimSpace + 1}))
	if err != nil {
		return err
	}
	old := x.acquire()
	if old == nil {
		return errRefreshEnded
	}
	defer old.release()
	m := newMirror(x, old)
	defer func() { m.opened.unuse() }()
	if err := m.add(version, stop); err != nil {
		return err
	}
	x.publish(m.list)
	return nil
}

// publish makes a list of the version at which the refresh began, with the runs since then, the list.
func (x *runIndex) publish(next *runList) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.list.Load()
	if l == nil {
		return
	}
	since := x.since
	x.since = broken
	if since < 0 {
		x.change()
		return
	}
	// The version may have some of these runs, but these lists have all of them, in order.
	runs := l.groups[:since:since]
	next.remove(runs)
	next.groups = append(runs, next.groups...)
	next.coverage.newest += len(runs)
	x.trim(next)
	next.takeDrops(l)
	x.replace(next)
}

// remove removes the tables of some groups.
func (l *runList) remove(groups []tableGroup) {
	remove := make(map[uint64]bool)
	for _, g := range groups {
		for _, t := range g {
			remove[t.number] = true
		}
	}
	l.keep(func(t *runTable) bool { return !remove[t.number] })
}

// takeDrops takes over the drops of the list before, and those of the tables, as far as they concern
// the tables.
func (l *runList) takeDrops(old *runList) {
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
func (l *runList) mayHaveOlder(prefix string, seq uint64) bool {
	span := prefixSpan(spaced(claimSpace, []byte(prefix)))
	return l.coverage.mayLackSome(span) || slices.ContainsFunc(l.groups, func(g tableGroup) bool { return g.hasOlder(span, seq) })
}

// A mirror is a list in the making.
type mirror struct {
	index  *runIndex
	open   map[uint64]*runTable // of the list before
	list   *runList
	opened tableGroup // by this refresh, in no order
	tables int
	size   uint64
}

func newMirror(x *runIndex, old *runList) *mirror {
	m := &mirror{index: x, open: make(map[uint64]*runTable), list: &runList{}}
	for _, g := range old.groups {
		for _, t := range g {
			m.open[t.number] = t
		}
	}
	return m
}

// add adds the tables of a version that are worth most, up to the first one that the list cannot have.
func (m *mirror) add(version [][]pebble.SSTableInfo, stop <-chan struct{}) error {
	var infos []pebble.SSTableInfo
	var levels []int
	var candidates []candidate
	for level, tables := range version {
		if level == 0 {
			slices.SortFunc(tables, newestFirst)
		}
		order := len(infos)
		for i, info := range tables {
			if level == 0 {
				order = i
			}
			candidates = append(candidates, newCandidate(info.Smallest.UserKey, info.Largest.UserKey,
				info.Largest.IsExclusiveSentinel(), order, len(infos)))
			infos, levels = append(infos, info), append(levels, level)
		}
	}
	byWorth(candidates, m.index.recent)
	tables := make([]*runTable, len(infos))
	m.list.coverage.loaded = true
	for n, c := range candidates {
		select {
		case <-stop:
			return errRefreshEnded
		default:
		}
		t, err := m.table(infos[c.at])
		if pebble.IsCorruptionError(err) || infos[c.at].Virtual {
			m.list.coverage.omit(c) // only its keys are looked up in Pebble, which reports the damage
			continue
		}
		if err != nil { // the rest is looked up in Pebble; if that has deleted the table, the next refresh follows
			m.list.coverage.loaded = errors.Is(err, errNoRoom)
			m.list.coverage.omit(candidates[n:]...)
			break
		}
		tables[c.at] = t
		m.tables++
		m.size += t.size
	}
	m.list.addVersion(tables, levels)
	return nil
}

// addVersion adds tables in the order of a version; nil is one that the list omits. It begins a group
// after the first of these: what follows may be older.
func (l *runList) addVersion(tables []*runTable, levels []int) {
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
func (l *runList) addTable(t *runTable, begin bool) {
	if last := len(l.groups) - 1; last >= 0 && !begin {
		if g := l.groups[last].with(t); g != nil {
			l.groups[last] = g
			return
		}
	}
	l.groups = append(l.groups, tableGroup{t})
}

// table returns a table, open.
func (m *mirror) table(info pebble.SSTableInfo) (*runTable, error) {
	switch t := m.open[uint64(info.FileNum)]; {
	case t != nil:
		return t, nil
	case info.Virtual:
		return nil, errNotARun
	case m.tables >= maxIndexed || m.size >= m.index.limit:
		return nil, errNoRoom
	}
	t, err := m.index.open(info.TableInfo, m.index.limit-m.size)
	if err == nil {
		m.opened = append(m.opened, t)
	}
	return t, err
}
