package pebble

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Damage in a table with nothing but claims is confined: Pebble checks the checksum of each block that
// it reads, so a look-up that succeeds needed no damaged one. Such errors are storage.DamageErrors, and
// the store continues. Damage in any other table makes the read fail as an ErrDamaged of the whole store.

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
	if len(b.Start) == 0 || b.Start[0] != claimSpace || len(b.End.Key) == 0 || b.End.Key[0] != claimSpace {
		return d, span, false
	}
	first, _, err := bucketAt(b.Start)
	if err != nil {
		return d, span, false
	}
	last, id, err := bucketAt(b.End.Key)
	if err != nil {
		return d, span, false
	}
	if len(id) == 0 && last.Week > weekbucket.Min && !b.End.IsUpperBoundFor(bytes.Compare, b.End.Key) {
		last.Week-- // the table ends where a dropped bucket does
	}
	d = storage.Damage{File: filepath.Base(filepath.FromSlash(info.Path)), First: first, Last: last}
	return d, pebble.KeyRange{Start: bytes.Clone(b.Start), End: successor(last.AppendPrefix([]byte{claimSpace}))}, true
}

// bucketAt splits a bound of a table. The end of a dropped bucket lacks the zeros at the end of the next week.
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

// damages has the damaged tables that were met and that still exist. Pebble reports them, also those
// that only compactions meet.
type damages struct {
	found chan struct{} // takes one: there is something to log

	mu     sync.Mutex // guards tables; Pebble may hold locks in the calls
	tables map[string]*damagedTable
}

type damagedTable struct {
	damage storage.Damage
	span   pebble.KeyRange
	cause  error
	met    bool      // since it was logged
	logged time.Time // zero if it was not
}

// damageLogInterval is how often a damaged table is logged that is met again and again.
const damageLogInterval = time.Hour

// statsRetry is the pause before Pebble tries again to read the statistics of a damaged table, which
// it does forever.
const statsRetry = 200 * time.Millisecond

func newDamages() *damages {
	return &damages{found: make(chan struct{}, 1), tables: make(map[string]*damagedTable)}
}

func inTableStats() bool { return isCalledBy("(*DB).collectTableStats") }

// note records a corruption that Pebble has found, if it is confined. It is called by the goroutine that
// has met it.
func (m *damages) note(info pebble.DataCorruptionInfo) bool {
	d, span, ok := damageOf(&info)
	if !ok {
		return false
	}
	m.mu.Lock()
	t := m.tables[d.File]
	if t == nil {
		t = &damagedTable{}
		m.tables[d.File] = t
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

// forget removes a table that is deleted, or whose damage may be gone.
func (m *damages) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tables, name)
}

// list returns the damaged tables by name.
func (m *damages) list() (list []storage.Damage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.tables {
		list = append(list, t.damage)
	}
	slices.SortFunc(list, func(a, b storage.Damage) int { return strings.Compare(a.File, b.File) })
	return list
}

// within returns the names of the damaged tables that overlap with a range.
func (m *damages) within(span pebble.KeyRange) (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, t := range m.tables {
		if bytes.Compare(t.span.Start, span.End) < 0 && bytes.Compare(span.Start, t.span.End) < 0 {
			names = append(names, name)
		}
	}
	return names
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

// due returns the tables that are to be logged now.
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
