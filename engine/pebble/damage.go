package pebble

import (
	"bytes"
	"cmp"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Damage in a table with only claims is confined: Pebble checks the checksum of each block that it
// reads, so a successful look-up has read no damaged block. Such errors are storage.DamageErrors,
// and the store continues. After damage in any other table, the read fails with ErrDamaged for the
// whole store.

// confined returns the damage that caused an error, if it is confined to claims, and the range of the
// damaged table.
func confined(err error) (d storage.Damage, span pebble.KeyRange, ok bool) {
	info := pebble.ExtractDataCorruptionInfo(err)
	if info == nil {
		return d, span, false
	}
	return damageOf(info)
}

func damageOf(info *pebble.DataCorruptionInfo) (d storage.Damage, span pebble.KeyRange, ok bool) {
	b := &info.Bounds
	exclusive := !b.End.IsUpperBoundFor(bytes.Compare, b.End.Key)
	return damageBetween(filepath.Base(filepath.FromSlash(info.Path)), b.Start, b.End.Key, exclusive)
}

// damageBetween returns the damage of a table with these bounds, if it has only claims.
func damageBetween(file string, start, end []byte, exclusive bool) (d storage.Damage, span pebble.KeyRange, ok bool) {
	if len(start) == 0 || start[0] != claimSpace || len(end) == 0 || end[0] != claimSpace {
		return d, span, false
	}
	first, _, err := bucketAt(start)
	if err != nil {
		return d, span, false
	}
	last, id, err := bucketAt(end)
	if err != nil {
		return d, span, false
	}
	if exclusive && len(id) == 0 && last.Week > weekbucket.Min {
		last.Week-- // the table ends at the end of a dropped bucket
	}
	d = storage.Damage{File: file, First: first, Last: last}
	return d, pebble.KeyRange{Start: bytes.Clone(start), End: successor(last.AppendPrefix([]byte{claimSpace}))}, true
}

// bucketAt returns the bucket of a bound of a table. The bound at the end of a dropped bucket lacks
// the trailing zeros of the next week.
func bucketAt(bound []byte) (b storage.Bucket, id []byte, err error) {
	key := bytes.Clone(bound[1:])
	for range weekbucket.KeySize {
		if b, id, err = storage.SplitKey(key); err == nil {
			return b, id, nil
		}
		key = append(key, 0)
	}
	return b, id, err
}

// damages has the known damaged tables that still exist. Pebble reports them, including those that
// only compactions meet.
type damages struct {
	found chan struct{} // capacity 1: there is something to log

	mu     sync.Mutex // guards tables; callers may hold locks of Pebble
	tables map[damagedKey]*damagedTable
}

// A damagedKey identifies a table. After an excision, a file may have several tables.
type damagedKey struct{ file, start string }

type damagedTable struct {
	damage storage.Damage
	span   pebble.KeyRange
	cause  error
	met    bool      // met since it was last logged
	logged time.Time // zero if it was not logged
}

// damageLogInterval is the minimum time between two log lines about the same damaged table.
const damageLogInterval = time.Hour

// statsRetry is the pause before Pebble again tries to read the statistics of a damaged table,
// which it does endlessly.
const statsRetry = 200 * time.Millisecond

func newDamages() *damages {
	return &damages{found: make(chan struct{}, 1), tables: make(map[damagedKey]*damagedTable)}
}

func inTableStats() bool { return isCalledBy("(*DB).collectTableStats") }

// note records a corruption that Pebble has found, if it is confined. The goroutine that has met it
// calls note.
func (m *damages) note(info pebble.DataCorruptionInfo) bool {
	d, span, ok := damageOf(&info)
	if !ok {
		return false
	}
	m.mu.Lock()
	key := damagedKey{d.File, string(span.Start)}
	t := m.tables[key]
	if t == nil {
		t = &damagedTable{}
		m.tables[key] = t
	}
	t.damage, t.span, t.cause, t.met = d, span, info.Details, true
	m.mu.Unlock()
	select {
	case m.found <- struct{}{}:
	default:
	}
	if inTableStats() {
		time.Sleep(statsRetry)
	}
	return true
}

// forget removes the tables of a deleted file.
func (m *damages) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.tables, func(key damagedKey, _ *damagedTable) bool { return key.file == name })
}

// cut updates the damaged tables after a range was removed from tables: it replaces those that
// overlap with the range by their remaining parts, each of which may have the damage. left has all
// tables with claims.
func (m *damages) cut(span pebble.KeyRange, left [][]pebble.SSTableInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := make(map[damagedKey]*damagedTable)
	for key, t := range m.tables {
		if overlap(t.span, span) {
			whole[key] = t
			delete(m.tables, key)
		}
	}
	for _, level := range left {
		for i := range level {
			x := &level[i]
			d, part, ok := damageBetween(tableName(uint64(x.BackingSSTNum)), x.Smallest.UserKey, x.Largest.UserKey, x.Largest.IsExclusiveSentinel())
			for key, t := range whole {
				if ok && key.file == d.File && overlap(t.span, part) {
					p := *t
					p.damage, p.span = d, part
					m.tables[damagedKey{d.File, string(part.Start)}] = &p
				}
			}
		}
	}
}

func overlap(a, b pebble.KeyRange) bool {
	return bytes.Compare(a.Start, b.End) < 0 && bytes.Compare(b.Start, a.End) < 0
}

// list returns the damaged tables, sorted by file name and key.
func (m *damages) list() (list []storage.Damage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.tables {
		list = append(list, t.damage)
	}
	slices.SortFunc(list, func(a, b storage.Damage) int {
		return cmp.Or(strings.Compare(a.File, b.File), bytes.Compare(a.First.AppendPrefix(nil), b.First.AppendPrefix(nil)))
	})
	return list
}

// in reports whether a damaged table overlaps with a range.
func (m *damages) in(span pebble.KeyRange) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.tables {
		if overlap(t.span, span) {
			return true
		}
	}
	return false
}

// report logs damaged tables until stop is closed.
func (m *damages) report(log *slog.Logger, stop <-chan struct{}) {
	for {
		select {
		case <-m.found:
		case <-stop:
			return
		}
		for _, t := range m.due(time.Now()) {
			log.Warn("hapax: a table with claims is damaged: events that may be in it are not decided, all others are; "+
				"drop the weeks when they are not needed any more, or restore a backup", "file", t.damage.File,
				"first", t.damage.First.String(), "last", t.damage.Last.String(), "error", t.cause.Error())
		}
	}
}

// due returns the tables that must be logged now.
func (m *damages) due(now time.Time) (due []damagedTable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.tables {
		if t.met && (t.logged.IsZero() || now.Sub(t.logged) >= damageLogInterval) {
			t.met, t.logged = false, now
			due = append(due, *t)
		}
	}
	return due
}
