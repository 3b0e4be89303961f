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
	next.trim(x.limit)
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
	var kept []tableGroup
	for _, g := range l.groups {
		g = slices.DeleteFunc(slices.Clone(g), func(t *runTable) bool { return remove[t.number] })
		if len(g) > 0 {
			kept = append(kept, g)
		}
	}
	l.groups = kept
}

// takeDrops takes over the drops of the list before, and those of the tables, as far as they concern
// the tables.
func (l *runList) takeDrops(old *runList) {
	l.drops = make(map[string]uint64)
	take := func(drops map[string]uint64) {
		for prefix, seq := range drops {
			if seq > l.drops[prefix] && (!l.complete || l.hasOlder(prefix, seq)) {
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

// hasOlder reports whether a bucket may have entries that are older than seq.
func (l *runList) hasOlder(prefix string, seq uint64) bool {
	span := prefixSpan(spaced(claimSpace, []byte(prefix)))
	return slices.ContainsFunc(l.groups, func(g tableGroup) bool { return g.hasOlder(span, seq) })
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
	m := &mirror{index: x, open: make(map[uint64]*runTable), list: &runList{complete: true}}
	for _, g := range old.groups {
		for _, t := range g {
			m.open[t.number] = t
		}
	}
	return m
}

// add adds the tables of a version, the newer first. It ends at the first one that the list cannot
// have.
func (m *mirror) add(version [][]pebble.SSTableInfo, stop <-chan struct{}) error {
	for level, tables := range version {
		if level == 0 {
			slices.SortFunc(tables, newestFirst)
		}
		for i, info := range tables {
			select {
			case <-stop:
				return errRefreshEnded
			default:
			}
			t, err := m.table(info)
			if m.list.complete = err == nil; !m.list.complete {
				return nil // the rest is looked up in Pebble; if that has deleted the table, the next refresh follows
			}
			m.append(t, level > 0 && i == 0)
		}
	}
	return nil
}

// append adds a table to the last group, or to a new one if it overlaps.
func (m *mirror) append(t *runTable, level bool) {
	m.tables++
	m.size += t.size
	last := len(m.list.groups) - 1
	if last >= 0 && !level {
		if g := m.list.groups[last].with(t); g != nil {
			m.list.groups[last] = g
			return
		}
	}
	m.list.groups = append(m.list.groups, tableGroup{t})
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
