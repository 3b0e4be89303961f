package versions_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/versions"
)

// stores opens a store of each kind in a directory.
var stores = map[string]func(dir string) (storage.Store, error){
	"pebble": func(dir string) (storage.Store, error) { return pebble.Open(dir, pebble.Options{CacheBytes: 1 << 20}) },
	"bolt":   func(dir string) (storage.Store, error) { return bolt.Open(dir, bolt.Options{}) },
}

// The stores on disk also agree with the model, reopened and as backups.
func TestStoresAgreeWithTheModel(t *testing.T) {
	for kind, open := range stores {
		t.Run(kind, func(t *testing.T) {
			m := newModel(3)
			dir := filepath.Join(t.TempDir(), "0")
			for life := range 3 {
				s, err := open(dir)
				if err != nil {
					t.Fatal(err)
				}
				m.open(t, s)
				m.check(t)
				for range 30 {
					m.step(t)
				}
				m.check(t)
				verify(t, m.eng)
				backup := filepath.Join(filepath.Dir(dir), fmt.Sprint(life+1))
				if err := m.eng.Admin().Backup(ctx, backup); err != nil {
					t.Fatal(err)
				}
				if err := m.eng.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = open(dir); err != nil {
					t.Fatal(err)
				}
				m.open(t, s)
				m.check(t)
				if err := m.eng.Close(); err != nil {
					t.Fatal(err)
				}
				dir = backup
			}
		})
	}
}

func row(key string, version uint64, payload string) versions.Row {
	return versions.Row{Tenant: "acme", Key: []byte(key), Version: version, Payload: []byte(payload)}
}

func get(t testing.TB, table *versions.Table, key string) versions.Result {
	t.Helper()
	a, err := table.Get(ctx, "acme", []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// In whatever order versions arrive, and how often, readers see the same rows.
func TestTheOrderOfPutsDoesNotMatter(t *testing.T) {
	deleted := versions.Row{Tenant: "acme", Key: []byte("k"), Version: 7, Deleted: true}
	for name, c := range map[string]struct {
		rows []versions.Row
		want string // payload; empty: not found
	}{
		"the greatest version wins": {[]versions.Row{row("k", 1, "a"), row("k", 3, "c"), row("k", 2, "b")}, "c"},
		"a deletion hides":          {[]versions.Row{row("k", 5, "a"), deleted, row("k", 6, "c")}, ""},
		"a deletion wins a tie":     {[]versions.Row{row("k", 7, "a"), deleted, row("k", 7, "b")}, ""},
		"later than the deletion":   {[]versions.Row{deleted, row("k", 8, "a")}, "a"},
		"the greatest offset":       {[]versions.Row{at(row("k", 4, "a"), 1), at(row("k", 4, "b"), 3), at(row("k", 4, "c"), 2), row("k", 4, "d")}, "b"},
		"a deletion by offset":      {[]versions.Row{at(row("k", 4, "a"), 1), at(deletion("k", 4), 2)}, ""},
		"a row after a deletion":    {[]versions.Row{at(deletion("k", 4), 1), at(row("k", 4, "a"), 2)}, "a"},
		"the first offset":          {[]versions.Row{row("k", 4, "a"), at(row("k", 4, "b"), 1), at(row("k", 4, "a"), 2)}, "b"},
		"one of different payloads": {[]versions.Row{row("k", 4, "a"), row("k", 4, "b"), row("k", 4, "c")}, "c"}, // by its hash
		"the greatest number":       {[]versions.Row{row("k", versions.AllVersions, "a"), row("k", 0, "b")}, "a"},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			c0 := newClock()
			e := openEngine(t, newMem(), c0)
			table := mustTable(t, e, versions.Options{})
			arrivals := slices.Concat(c.rows, c.rows)
			rng.Shuffle(len(arrivals), func(i, j int) { arrivals[i], arrivals[j] = arrivals[j], arrivals[i] })
			for _, r := range arrivals {
				put(t, e, table, r)
			}
			a := get(t, table, "k")
			if a.Found != (c.want != "") || string(a.Row.Payload) != c.want {
				t.Errorf("%s: %+v after %v", name, a, arrivals)
			}
			_ = e.Close()
		}
	}
}

// A countingStore counts reads of the package's keys.
type countingStore struct {
	storage.Store
	reads atomic.Int32
}

func (s *countingStore) count(key []byte) {
	if bytes.Contains(key, []byte("versions")) {
		s.reads.Add(1)
	}
}

func (s *countingStore) State(key []byte) ([]byte, bool, error) {
	s.count(key)
	return s.Store.State(key)
}

func (s *countingStore) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	s.count(span.Prefix)
	return s.Store.ScanState(span, fn)
}

// Put reads nothing from the store, and transactions that put versions of one row never conflict.
func TestPutIsBlind(t *testing.T) {
	s := &countingStore{Store: newMem()}
	e := openEngine(t, s, newClock())
	table := mustTable(t, e, versions.Options{})
	put(t, e, table, row("k", 1, "a"))
	err := e.Update(ctx, func(tx *engine.Tx) error {
		put(t, e, table, row("k", 2, "b"), row("k", 3, "c")) // another transaction, which commits first
		return errors.Join(table.In(tx).Put(row("k", 3, "c")), table.In(tx).Delete("acme", []byte("k"), 4))
	})
	if err != nil || s.reads.Load() != 0 {
		t.Errorf("%v, %d reads", err, s.reads.Load())
	}
	if a := get(t, table, "k"); a.Found || s.reads.Load() != 2 {
		t.Error(a, s.reads.Load())
	}
}

// A read in a transaction conflicts with a Put of a newer version, and not with one of an older
// version or of another row.
func TestReadsOfATransactionAreSerializable(t *testing.T) {
	for name, c := range map[string]struct {
		other versions.Row
		want  error
	}{
		"newer":       {row("k", 9, "n"), engine.ErrConflict},
		"older":       {row("k", 3, "o"), nil},
		"another row": {row("kk", 9, "n"), nil},
		"absent row":  {row("absent", 1, "n"), engine.ErrConflict},
	} {
		e := openEngine(t, newMem(), newClock())
		table := mustTable(t, e, versions.Options{})
		put(t, e, table, row("k", 5, "a"), row("k", 4, "b"))
		err := e.Update(ctx, func(tx *engine.Tx) error {
			in := table.In(tx)
			r, found, err := in.Get("acme", []byte("k"))
			if err != nil || !found || r.Version != 5 {
				t.Error(name, r, found, err)
			}
			if _, found, err := in.Get("acme", []byte("absent")); err != nil || found {
				t.Error(name, found, err)
			}
			put(t, e, table, c.other)
			return in.Put(row("k", r.Version+1, "mine"))
		})
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Rows commit with the claims of their transaction, or not at all; a transaction sees its own rows.
func TestRowsCommitWithClaims(t *testing.T) {
	c := newClock()
	e := openEngine(t, newMem(), c)
	table := mustTable(t, e, versions.Options{})
	ev := engine.Event{Scope: "s", ID: []byte("1"), Time: c.now(), Origin: engine.Origin{Topic: "t"}}
	for attempt, failure := range []error{errRolledBack, nil} {
		err := e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(ev)
			if err != nil || r.Verdict != engine.Claimed {
				t.Fatal(attempt, r, err)
			}
			in := table.In(tx)
			if err := in.Put(row("k", 2, "a")); err != nil {
				return err
			}
			if own, found, err := in.Get("acme", []byte("k")); err != nil || !found || own.Version != 2 {
				t.Error(own, found, err)
			}
			return failure
		})
		if !errors.Is(err, failure) || get(t, table, "k").Found != (failure == nil) {
			t.Error(attempt, err, get(t, table, "k"))
		}
	}
}

func TestSelections(t *testing.T) {
	c := newClock()
	e := openEngine(t, newMem(), c)
	table := mustTable(t, e, versions.Options{})
	other, err := versions.New(e, "rows\x00", versions.Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := func(hour int) time.Time { return c.now().Add(time.Duration(hour) * time.Hour) }
	rows := []versions.Row{
		{Tenant: "a", Key: []byte("x"), Version: 1, Time: at(1)},
		{Tenant: "a", Key: []byte("x"), Version: 2, Time: at(5)},
		{Tenant: "a", Key: []byte("x\x00"), Version: 1, Time: at(2)},
		{Tenant: "a", Key: []byte("y"), Version: 1},
		{Tenant: "a\x00", Key: []byte("x"), Version: 1, Time: at(3)},
		{Tenant: "ab", Key: []byte("x"), Version: 1, Time: at(4)},
		{Tenant: "ab", Key: []byte("z"), Version: 1, Time: at(4)},
		{Tenant: "ab", Key: []byte("z"), Version: 2, Deleted: true},
		{Tenant: "b", Key: []byte("x"), Version: 1, Time: at(1)},
	}
	put(t, e, table, rows...)
	put(t, e, other, versions.Row{Tenant: "a", Key: []byte("x"), Version: 9})
	for name, c := range map[string]struct {
		s    versions.Selection
		want string
	}{
		"all":              {versions.Selection{}, "a/x:2 a/x\x00:1 a/y:1 a\x00/x:1 ab/x:1 b/x:1"},
		"tenant":           {versions.Selection{Tenant: "a"}, "a/x:2 a/x\x00:1 a/y:1"},
		"no such tenant":   {versions.Selection{Tenant: "c"}, ""},
		"tenants":          {versions.Selection{TenantPrefix: "a"}, "a/x:2 a/x\x00:1 a/y:1 a\x00/x:1 ab/x:1"},
		"tenants with 00":  {versions.Selection{TenantPrefix: "a\x00"}, "a\x00/x:1"},
		"keys":             {versions.Selection{Tenant: "a", KeyPrefix: []byte("x")}, "a/x:2 a/x\x00:1"},
		"keys with 00":     {versions.Selection{Tenant: "a", KeyPrefix: []byte("x\x00")}, "a/x\x00:1"},
		"from":             {versions.Selection{From: at(3)}, "a/x:2 a\x00/x:1 ab/x:1"},
		"until":            {versions.Selection{Until: at(3)}, "a/x\x00:1 b/x:1"},
		"from and until":   {versions.Selection{TenantPrefix: "a", From: at(2), Until: at(4)}, "a/x\x00:1 a\x00/x:1"},
		"after":            {versions.Selection{After: &rows[0]}, "a/x\x00:1 a/y:1 a\x00/x:1 ab/x:1 b/x:1"},
		"after in tenant":  {versions.Selection{Tenant: "a", After: &rows[2]}, "a/y:1"},
		"after the tenant": {versions.Selection{Tenant: "a", After: &rows[8]}, ""},
	} {
		list := func(rows []versions.Row) string {
			var got []string
			for _, r := range rows {
				got = append(got, fmt.Sprintf("%s/%s:%d", r.Tenant, r.Key, r.Version))
			}
			return strings.Join(got, " ")
		}
		if got := list(scan(t, table, c.s)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		_ = e.Update(ctx, func(tx *engine.Tx) error {
			if got := list(collect(t, table.In(tx).Scan(c.s))); got != c.want {
				t.Errorf("%s in a transaction: %q, want %q", name, got, c.want)
			}
			return nil
		})
	}
	all, err := table.ScanWithOlderVersions(ctx, versions.Selection{Tenant: "ab"})
	if err != nil {
		t.Fatal(err)
	}
	got := collect(t, all.All)
	if len(got) != 3 || got[1].Version != 2 || !got[1].Deleted || got[2].Version != 1 {
		t.Errorf("with older versions: %v", got)
	}
}

// Rows are read as they were put.
func TestRowsAreReadAsTheyWerePut(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	table := mustTable(t, e, versions.Options{})
	long := bytes.Repeat([]byte{0}, versions.MaxKeyBytes)
	for i, r := range []versions.Row{
		{Tenant: "a", Key: []byte("k"), Version: 1, Payload: []byte("p"), Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)},
		{Tenant: "a", Key: []byte("k"), Version: 2, Payload: []byte{}, Time: time.Date(1, 1, 2, 3, 4, 5, 6000, time.UTC)},
		{Tenant: strings.Repeat("\x00", versions.MaxTenantBytes), Key: long, Version: versions.AllVersions, Payload: make([]byte, versions.MaxPayloadBytes)},
		{Tenant: "\xff", Key: []byte("\xff\xff"), Version: 0, Payload: []byte("r")},
	} {
		put(t, e, table, r)
		a, err := table.Get(ctx, r.Tenant, r.Key)
		if err != nil || !a.Found || a.Row.Tenant != r.Tenant || !bytes.Equal(a.Row.Key, r.Key) || a.Row.Version != r.Version ||
			!bytes.Equal(a.Row.Payload, r.Payload) || !a.Row.Time.Equal(r.Time) || a.Row.Time.IsZero() != r.Time.IsZero() || a.Row.Deleted {
			t.Error(i, err, a.Row.Version, a.Row.Time, len(a.Row.Payload))
		}
	}
}

func TestBadRowsAreRejected(t *testing.T) {
	c := newClock()
	mem := newMem()
	e := openEngine(t, mem, c)
	table := mustTable(t, e, versions.Options{})
	applied := mem.Calls(storetest.OpApply)
	good := row("k", 1, "p")
	bad := map[string]func(r *versions.Row){
		"tenant":    func(r *versions.Row) { r.Tenant = "" },
		"tenant ":   func(r *versions.Row) { r.Tenant = strings.Repeat("t", versions.MaxTenantBytes+1) },
		"key":       func(r *versions.Row) { r.Key = nil },
		"key ":      func(r *versions.Row) { r.Key = make([]byte, versions.MaxKeyBytes+1) },
		"payload":   func(r *versions.Row) { r.Payload = make([]byte, versions.MaxPayloadBytes+1) },
		"deletion":  func(r *versions.Row) { r.Deleted = true },
		"offset":    func(r *versions.Row) { r.Offset = -1 },
		"payload  ": func(r *versions.Row) { r.Partial = true },
		"deletion ": func(r *versions.Row) { r.Deleted, r.Partial, r.Payload = true, true, nil },
		"time":      func(r *versions.Row) { r.Time = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) },
	}
	for what, change := range bad {
		r := good
		change(&r)
		err := e.Update(ctx, func(tx *engine.Tx) error { return table.In(tx).Put(r) })
		var refused *versions.RowError
		if !errors.As(err, &refused) || refused.What != strings.TrimSpace(what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, s := range []versions.Selection{
		{Tenant: "a", TenantPrefix: "a"}, {KeyPrefix: []byte("k")}, {After: &versions.Row{}},
		{Tenant: strings.Repeat("t", versions.MaxTenantBytes+1)}, {Tenant: "a", KeyPrefix: make([]byte, versions.MaxKeyBytes+1)},
	} {
		var refused *versions.RowError
		if _, err := table.Scan(ctx, s); !errors.As(err, &refused) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if err := table.In(nil).Put(good); !errors.Is(err, engine.ErrNoTransaction) {
		t.Error(err)
	}
	for _, name := range []string{"", strings.Repeat("t", versions.MaxTableBytes+1)} {
		if _, err := versions.New(e, name, versions.Options{}); err == nil {
			t.Error("a table with a bad name")
		}
	}
	if n := mem.Calls(storetest.OpApply); n != applied {
		t.Errorf("%d batches of rejected rows", n-applied)
	}
}

// LastApplied is the time of the last commit, never decreases, is durable, and is part of each
// result.
func TestLastApplied(t *testing.T) {
	c := newClock()
	mem := newMem()
	e := openEngine(t, mem, c)
	table := mustTable(t, e, versions.Options{})
	want := func(want time.Time) {
		t.Helper()
		rows, err := table.Scan(ctx, versions.Selection{Tenant: "nobody"})
		if err != nil {
			t.Fatal(err)
		}
		if a := get(t, table, "absent"); !a.LastApplied.Equal(want) || !rows.LastApplied.Equal(want) {
			t.Errorf("%v and %v, want %v", a.LastApplied, rows.LastApplied, want)
		}
	}
	want(time.Time{})
	begun := c.now()
	err := e.Update(ctx, func(tx *engine.Tx) error {
		err := table.In(tx).Put(row("k", 1, "a"))
		c.advance(time.Minute) // until it commits
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want(begun.Add(time.Minute))
	c.advance(-time.Hour)
	put(t, e, table, row("k", 2, "a"))
	want(begun.Add(time.Minute))
	c.advance(2 * time.Hour)
	want(begun.Add(time.Minute))
	put(t, e, table, row("k", 1, "a")) // already stored: it was applied nevertheless
	want(begun.Add(61 * time.Minute))
	mem = mem.CrashClone(0)
	e = openEngine(t, mem, c)
	table = mustTable(t, e, versions.Options{})
	want(begun.Add(61 * time.Minute))
}

func TestTablesOfOneNameAreOne(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	one, two := mustTable(t, e, versions.Options{}), mustTable(t, e, versions.Options{})
	put(t, e, one, row("k", 1, "a"))
	put(t, e, two, row("k", 2, "b"))
	if !maps.Equal(named(scan(t, one, versions.Selection{})), named(scan(t, two, versions.Selection{}))) {
		t.Error("two tables of one name differ")
	}
}

// Times are stored and selected to the microsecond: a row is found by the time that it was put
// with, and by one of two consecutive selections.
func TestTimesAreSelectedToTheMicrosecond(t *testing.T) {
	e := openEngine(t, storetest.NewMem(storage.Identity{}), newClock())
	table := mustTable(t, e, versions.Options{})
	when := time.Date(2026, 3, 4, 12, 0, 0, 1500, time.UTC)
	put(t, e, table, versions.Row{Tenant: "a", Key: []byte("x"), Version: 1, Time: when})
	for at := when.Add(-2 * time.Microsecond); at.Before(when.Add(2 * time.Microsecond)); at = at.Add(100 * time.Nanosecond) {
		before, since := len(scan(t, table, versions.Selection{Until: at})), len(scan(t, table, versions.Selection{From: at}))
		if before+since != 1 || at.Equal(when) && since != 1 {
			t.Errorf("%v: %d before, %d since", at, before, since)
		}
	}
}
