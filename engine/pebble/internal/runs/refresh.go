package runs

import (
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

var errRefreshEnded = errors.New("the refresh was ended")

// Refresh makes the list that of Pebble's current version. If it fails, the list stays as it is.
// Only one refresh runs at a time.
func (x *Index) Refresh(db *pebble.DB, stop <-chan struct{}) error {
	select {
	case <-stop:
		return errRefreshEnded
	default:
	}
	x.mu.Lock()
	x.since = 0
	x.mu.Unlock()
	version, err := db.SSTables(pebble.WithKeyRangeFilter([]byte{Space}, []byte{Space + 1}))
	if err != nil {
		return err
	}
	old := x.acquire()
	if old == nil {
		return errRefreshEnded
	}
	defer old.release()
	m := newMirror(x, old)
	defer func() { m.opened.release() }()
	if err := m.add(version, stop); err != nil {
		return err
	}
	x.publish(m.list)
	return nil
}

// publish installs the list of the version at which the refresh began, with the runs since then before it.
func (x *Index) publish(next *list) {
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

// A mirror is a list in the making.
type mirror struct {
	index  *Index
	open   map[uint64]*table // of the list before
	list   *list
	opened group // by this refresh, in no order
	tables int
	size   uint64
}

func newMirror(x *Index, old *list) *mirror {
	m := &mirror{index: x, open: make(map[uint64]*table), list: &list{}}
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
	tables := make([]*table, len(infos))
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

// table returns a table, open.
func (m *mirror) table(info pebble.SSTableInfo) (*table, error) {
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
