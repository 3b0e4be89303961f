package versions_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/versions"
)

// stored returns how many versions are stored.
func stored(t testing.TB, table *versions.Table) int {
	t.Helper()
	rows, err := table.ScanWithOlderVersions(ctx, versions.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	return len(collect(t, rows.All))
}

func prune(t testing.TB, table *versions.Table) versions.Pruned {
	t.Helper()
	done, err := table.Prune(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// Prune leaves one version of each row, however many there are.
func TestPruneLeavesTheNewestVersions(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	table := mustTable(t, e, versions.Options{})
	var rows []versions.Row
	for v := range uint64(2500) { // more than a transaction removes
		rows = append(rows, row("long", v, "p"))
	}
	for i := range 1500 {
		rows = append(rows, row(fmt.Sprint("short", i), 1, "p"), row(fmt.Sprint("short", i), 2, "p"))
	}
	put(t, e, table, rows...)
	before := named(scan(t, table, versions.Selection{}))
	if done := prune(t, table); done != (versions.Pruned{Versions: 2499 + 1500}) {
		t.Error(done)
	}
	if n := stored(t, table); n != 1501 || fmt.Sprint(named(scan(t, table, versions.Selection{}))) != fmt.Sprint(before) {
		t.Error(n)
	}
	if done := prune(t, table); done != (versions.Pruned{}) {
		t.Error("a second pass:", done)
	}
}

// A deletion is kept for as long as the options say: until then no older version becomes visible.
func TestDeletionsAreKeptForAWhile(t *testing.T) {
	c := newClock()
	e := openEngine(t, newMem(), c)
	table := mustTable(t, e, versions.Options{KeepDeletions: time.Hour, Clock: c.now})
	forever := mustTable(t, e, versions.Options{Clock: c.now})
	put(t, e, table, row("k", 1, "a"), versions.Row{Tenant: "acme", Key: []byte("k"), Version: 5, Deleted: true})
	c.advance(time.Hour)
	if done := prune(t, table); done != (versions.Pruned{Versions: 1}) || stored(t, table) != 1 {
		t.Error(done)
	}
	put(t, e, table, row("k", 4, "late"))
	if get(t, table, "k").Found {
		t.Error("an older version than the deletion is visible")
	}
	c.advance(time.Second)
	if done := prune(t, forever); done != (versions.Pruned{Versions: 1}) || stored(t, table) != 1 {
		t.Error(done)
	}
	put(t, e, table, row("k", 4, "late"))
	if done := prune(t, table); done.Deletions != 1 || done.Versions != 1 || stored(t, table) != 0 {
		t.Error(done)
	}
	put(t, e, table, row("k", 4, "later"))
	if a := get(t, table, "k"); string(a.Row.Payload) != "later" {
		t.Error("stated: once the deletion is removed, an older version is visible", a)
	}
}

// A version is removed only if the newer one still exists when the removal commits: here the row is
// erased in between, and later versions must remain.
func TestPruneRemovesOnlyVersionsThatAreStillReplaced(t *testing.T) {
	mem := newMem()
	s := &betweenScans{Store: mem}
	c := newClock()
	e := openEngine(t, s, c)
	table := mustTable(t, e, versions.Options{KeepDeletions: time.Hour, Clock: c.now})
	put(t, e, table, row("k", 3, "old"), versions.Row{Tenant: "acme", Key: []byte("k"), Version: 5, Deleted: true})
	c.advance(2 * time.Hour)
	// after the pass has read the page, another one removes the deletion, and the old version is
	// put again
	s.once = func() {
		prune(t, table)
		if stored(t, table) != 0 {
			t.Error("the deletion still exists")
		}
		put(t, e, table, row("k", 3, "old"))
	}
	done := prune(t, table)
	if a := get(t, table, "k"); !a.Found {
		t.Error("a visible version was removed", done)
	}
}

// betweenScans calls a function once, after a scan.
type betweenScans struct {
	storage.Store
	skip int // scans
	once func()
}

func (s *betweenScans) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	err := s.Store.ScanState(span, fn)
	if once := s.once; once != nil && bytes.Contains(span.Prefix, []byte("versions\x00")) {
		if s.skip--; s.skip >= 0 {
			return err
		}
		s.once = nil
		once()
	}
	return err
}

func TestRunPrunesUntilItsContextEnds(t *testing.T) {
	e := openEngine(t, newMem(), newClock())
	table := mustTable(t, e, versions.Options{PruneEvery: time.Millisecond})
	runs, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- table.Run(runs) }()
	for version := range uint64(3) {
		put(t, e, table, row("k", 2*version, "a"), row("k", 2*version+1, "b"))
		for stored(t, table) != 1 {
			time.Sleep(time.Millisecond)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := table.Run(ctx); !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
}

// Erased versions are not visible again: not if older versions arrive later, not after deletions
// above them are removed, and not after a power failure. Newer versions create the row again.
func TestErase(t *testing.T) {
	c := newClock()
	mem := newMem()
	e := openEngine(t, mem, c)
	options := versions.Options{KeepDeletions: time.Hour, Clock: c.now}
	table := mustTable(t, e, options)
	var rows []versions.Row
	for v := range uint64(2100) {
		rows = append(rows, row("k", v, "secret"))
	}
	put(t, e, table, append(rows, row("kk", 1, "other"))...)
	if err := table.Erase(ctx, "acme", []byte("k"), 3000); err != nil {
		t.Fatal(err)
	}
	if calls := mem.Calls(storetest.OpReclaimState); calls != 1 {
		t.Error("the space is not compacted", calls)
	}
	gone := func(when string) {
		t.Helper()
		if get(t, table, "k").Found || !get(t, table, "kk").Found || len(scan(t, table, versions.Selection{})) != 1 {
			t.Error("visible", when)
		}
		err := e.Update(ctx, func(tx *engine.Tx) error {
			if _, found, err := table.In(tx).Get("acme", []byte("k")); found || err != nil {
				t.Error(when, found, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	gone("after Erase")
	if n := stored(t, table); n != 2 { // the mark and the other row
		t.Error(n)
	}
	put(t, e, table, row("k", 2999, "late"), row("k", 3000, "late"))
	gone("after late versions")
	put(t, e, table, row("k", 3001, "new"))
	if a := get(t, table, "k"); string(a.Row.Payload) != "new" {
		t.Error(a)
	}
	put(t, e, table, versions.Row{Tenant: "acme", Key: []byte("k"), Version: 3002, Deleted: true})
	c.advance(2 * time.Hour)
	if done := prune(t, table); done.Deletions != 1 || stored(t, table) != 2 {
		t.Error(done)
	}
	put(t, e, table, row("k", 2500, "late"))
	gone("after the deletion was removed")
	mem = mem.CrashClone(0)
	e = openEngine(t, mem, c)
	table = mustTable(t, e, options)
	gone("after a power cut")
	if err := table.Erase(ctx, "acme", []byte("k"), 10); err != nil { // does not lower the mark
		t.Fatal(err)
	}
	put(t, e, table, row("k", 3000, "late"))
	gone("after another Erase")
	if err := table.Erase(ctx, "acme", []byte("k"), versions.AllVersions); err != nil {
		t.Fatal(err)
	}
	put(t, e, table, row("k", versions.AllVersions, "late"))
	gone("forever")
	prune(t, table)
	gone("after Prune")
	if n := stored(t, table); n != 2 {
		t.Error(n)
	}
}

// noise returns incompressible bytes.
func noise(rng *rand.ChaCha8, n int) string {
	b := make([]byte, n)
	_, _ = rng.Read(b)
	return string(b)
}

// holding returns the files in a directory that contain text.
func holding(t testing.TB, dir, text string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(text)) {
			names = append(names, f.Name())
		}
	}
	return names
}

// When Erase has returned, no table of Pebble contains a byte of an erased payload; nor does any
// file after the store was opened again and old logs are deleted in the background. A backup of
// bbolt has none.
func TestErasedBytesAreRemovedFromDisk(t *testing.T) {
	for kind, open := range stores {
		t.Run(kind, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			s, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			c := newClock()
			e := openEngine(t, s, c)
			table := mustTable(t, e, versions.Options{})
			rng := rand.NewChaCha8([32]byte{})
			secret := noise(rng, 200)
			for v := range uint64(5) {
				put(t, e, table, row("person", v, secret+fmt.Sprint(v)), row("other", v, noise(rng, 200)))
				if v == 2 { // some of it reaches tables
					if err := table.Reclaim(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(holding(t, dir, secret)) == 0 {
				t.Fatal("the secret was not found before either")
			}
			if err := table.Erase(ctx, "acme", []byte("person"), versions.AllVersions); err != nil {
				t.Fatal(err)
			}
			backup := filepath.Join(t.TempDir(), "backup")
			if err := e.Admin().Backup(ctx, backup); err != nil {
				t.Fatal(err)
			}
			for _, name := range holding(t, dir, secret) {
				if strings.HasSuffix(name, ".sst") {
					t.Error("in", name)
				}
			}
			if names := holding(t, backup, secret); kind == "bolt" && len(names) > 0 {
				t.Error("in the backup:", names)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = open(dir); err != nil {
				t.Fatal(err)
			}
			e = openEngine(t, s, c)
			if kind == "pebble" {
				names := holding(t, dir, secret)
				for deadline := time.Now().Add(time.Minute); len(names) > 0 && time.Now().Before(deadline); names = holding(t, dir, secret) {
					time.Sleep(time.Millisecond)
				}
				if len(names) > 0 {
					t.Error("a minute after the store was opened again:", names)
				}
			}
			if get(t, mustTable(t, e, versions.Options{}), "other").Row.Version != 4 {
				t.Error("another row is lost")
			}
			verify(t, e)
		})
	}
}

// Prune frees the space of older versions.
func TestPruneFreesSpace(t *testing.T) {
	s, err := pebble.Open(filepath.Join(t.TempDir(), "store"), pebble.Options{SmallTables: true})
	if err != nil {
		t.Fatal(err)
	}
	e := openEngine(t, s, newClock())
	table := mustTable(t, e, versions.Options{})
	rng := rand.NewChaCha8([32]byte{})
	const keys, rounds, size = 500, 10, 1000
	for v := range uint64(rounds) {
		var rows []versions.Row
		for i := range keys {
			rows = append(rows, row(fmt.Sprint("key", i), v, noise(rng, size)))
		}
		put(t, e, table, rows...)
	}
	used := func() uint64 {
		t.Helper()
		if err := table.Reclaim(ctx); err != nil {
			t.Fatal(err)
		}
		u, err := s.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u.DiskBytes
	}
	before := used()
	if before < keys*rounds*size {
		t.Fatalf("%d bytes before", before)
	}
	if done := prune(t, table); done.Versions != keys*(rounds-1) {
		t.Error(done)
	}
	if after := used(); after > before/3 {
		t.Errorf("%d bytes, before %d", after, before)
	}
	verify(t, e)
}

// Expired deletions are removed however many there are, in transactions of a bounded size.
func TestManyExpiredDeletionsAreRemoved(t *testing.T) {
	clk := newClock()
	mem := newMem()
	e := openEngine(t, mem, clk)
	table := mustTable(t, e, versions.Options{KeepDeletions: time.Hour, Clock: clk.now})
	const n = 2100
	err := e.Update(ctx, func(tx *engine.Tx) error {
		for i := range n {
			if err := table.In(tx).Delete("t", fmt.Append(nil, "key", i), 1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	clk.advance(2 * time.Hour)
	before := mem.Calls(storetest.OpApply)
	if done := prune(t, table); done != (versions.Pruned{Deletions: n}) || stored(t, table) != 0 {
		t.Error(done)
	}
	if batches := mem.Calls(storetest.OpApply) - before; batches != 3 {
		t.Errorf("they were removed in %d transactions, want 3: a transaction has at most 1000", batches)
	}
}
