package versions_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/versions"
)

const day = 24 * time.Hour

// A fixture is a table that keeps deletions for 30 days.
type fixture struct {
	c     *clock
	e     *engine.Engine
	table *versions.Table
}

func newFixture(t *testing.T, s storage.Store) *fixture {
	t.Helper()
	f := &fixture{c: newClock()}
	f.e = openEngine(t, s, f.c)
	f.table = mustTable(t, f.e, versions.Options{KeepDeletions: 30 * day, Clock: f.c.now})
	return f
}

func deletion(key string, version uint64) versions.Row {
	return versions.Row{Tenant: "acme", Key: []byte(key), Version: version, Deleted: true}
}

func pruneAll(t testing.TB, table *versions.Table) versions.Pruned {
	t.Helper()
	done, err := table.PruneAllExpired(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// A pass while the clock says 2099 removes no deletion, so that late older versions stay hidden.
// Once the clock is right, PruneAllExpired sets the times right, and later passes remove the
// deletions.
func TestPruneWithTheClockAheadRemovesNoDeletion(t *testing.T) {
	f := newFixture(t, newMem())
	c, e, table := f.c, f.e, f.table
	const n, ahead = 2500, 73 * 365 * day
	for i := range n { // minutes to days old
		put(t, e, table, deletion(fmt.Sprint("key", i), 2))
		c.advance(time.Minute)
	}
	c.advance(ahead)
	for _, want := range []versions.Pruned{{Renewed: n}, {}} {
		if done := prune(t, table); done != want {
			t.Errorf("with the clock ahead %+v, want %+v", done, want)
		}
	}
	c.advance(-ahead)
	for i := range n {
		put(t, e, table, row(fmt.Sprint("key", i), 1, "late"))
	}
	if rows := scan(t, table, versions.Selection{}); len(rows) > 0 {
		t.Errorf("%d deleted rows are visible", len(rows))
	}
	if done := prune(t, table); done != (versions.Pruned{Versions: n}) {
		t.Errorf("with the clock right %+v", done)
	}
	if done := pruneAll(t, table); done != (versions.Pruned{Renewed: n}) {
		t.Errorf("PruneAllExpired %+v", done)
	}
	c.advance(30 * day)
	if done := prune(t, table); done != (versions.Pruned{}) {
		t.Errorf("after 30 days %+v", done)
	}
	c.advance(time.Hour)
	if done := prune(t, table); done != (versions.Pruned{Deletions: n}) || stored(t, table) != 0 {
		t.Errorf("after 30 days and an hour %+v", done)
	}
	verify(t, e)
}

// A deletion that was written while the clock said 1970 is kept for the whole time, from the first
// pass with the right clock.
func TestDeletionWithTheClockBehindIsKept(t *testing.T) {
	mem := newMem()
	f := newFixture(t, mem)
	c, e, table := f.c, f.e, f.table
	put(t, e, table, row("k", 1, "deleted"))
	const behind = 56 * 365 * day
	c.advance(-behind)
	put(t, e, table, deletion("k", 2))
	prune(t, table)
	c.advance(behind + time.Second)
	if done := prune(t, table); done != (versions.Pruned{Renewed: 1}) {
		t.Errorf("a second after the Delete %+v", done)
	}
	mem = mem.CrashClone(0)
	e = openEngine(t, mem, c)
	table = mustTable(t, e, versions.Options{KeepDeletions: 30 * day, Clock: c.now})
	for range 30 {
		c.advance(day)
		prune(t, table)
		put(t, e, table, row("k", 1, "deleted"))
		if get(t, table, "k").Found {
			t.Fatal("the deleted row is visible on", c.now())
		}
	}
	c.advance(time.Second)
	if done := prune(t, table); done.Deletions != 1 || stored(t, table) != 0 {
		t.Errorf("after 30 days and a second %+v", done)
	}
	verify(t, e)
}

// However far the clock jumps ahead, passes remove deletions of at most two days.
func TestClockJumpRemovesDeletionsOfABoundedSpan(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, day, 10 * day, 29 * day, 30 * day, 31 * day, 32 * day, 33 * day, 90 * day, 1000 * day} {
		f := newFixture(t, newMem())
		for i := range 30 * 4 {
			put(t, f.e, f.table, deletion(fmt.Sprint("key", i), 2))
			f.c.advance(6 * time.Hour)
		}
		f.c.advance(ahead)
		removed := uint64(0)
		for range 24 {
			removed += prune(t, f.table).Deletions
			f.c.advance(time.Minute)
		}
		if removed > 9 {
			t.Errorf("%v ahead: %d deletions of 30 days are removed, want at most those of two days", ahead, removed)
		}
	}
}

// Deletions that expire while no pass runs are kept once more. PruneAllExpired removes them at
// once, and with Options.PruneEvery for rare passes they are removed in time.
func TestDeletionsThatExpiredLongAgo(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration
		every time.Duration
		pass  func(*versions.Table) (versions.Pruned, error)
		want  versions.Pruned
	}{
		{"in time", 32 * day, 0, prunes, versions.Pruned{Deletions: 1}},
		{"late", 32*day + time.Second, 0, prunes, versions.Pruned{Renewed: 1}},
		{"forced", 300 * day, 0, prunesAll, versions.Pruned{Deletions: 1}},
		{"forced, not expired", 30 * day, 0, prunesAll, versions.Pruned{}},
		{"rare passes", 44 * day, 7 * day, prunes, versions.Pruned{Deletions: 1}},
		{"rare passes, late", 44*day + time.Second, 7 * day, prunes, versions.Pruned{Renewed: 1}},
		{"written in the future", -day, 0, prunes, versions.Pruned{}},
		{"written in the future, forced", -day, 0, prunesAll, versions.Pruned{Renewed: 1}},
	} {
		c := newClock()
		e := openEngine(t, newMem(), c)
		table := mustTable(t, e, versions.Options{KeepDeletions: 30 * day, PruneEvery: test.every, Clock: c.now})
		put(t, e, table, deletion("k", 2), row("other", 1, "p"))
		c.advance(test.after)
		if done, err := test.pass(table); err != nil || done != test.want {
			t.Errorf("%s: %+v %v, want %+v", test.name, done, err, test.want)
		}
		c.advance(30*day + time.Second)
		if _, err := table.Prune(ctx); err != nil {
			t.Error(err)
		}
		if n := stored(t, table); n != 1 && test.want.Renewed > 0 {
			t.Errorf("%s: %d versions, want 1: a deletion that was kept once more is removed", test.name, n)
		}
	}
}

func prunes(t *versions.Table) (versions.Pruned, error)    { return t.Prune(ctx) }
func prunesAll(t *versions.Table) (versions.Pruned, error) { return t.PruneAllExpired(ctx) }

// A pass renews a deletion only if it still is the newest version when the change commits.
func TestOnlyADeletionThatStillExistsIsRenewed(t *testing.T) {
	for name, between := range map[string]func(*testing.T, *fixture){
		"removed": func(t *testing.T, f *fixture) { pruneAll(t, f.table) },
		"erased": func(t *testing.T, f *fixture) {
			if err := f.table.Erase(ctx, "acme", []byte("k"), 9); err != nil {
				t.Error(err)
			}
		},
		"replaced": func(t *testing.T, f *fixture) { put(t, f.e, f.table, row("k", 6, "new")) },
		"renewed":  func(t *testing.T, f *fixture) { prune(t, f.table) },
	} {
		s := &betweenScans{Store: newMem()}
		f := newFixture(t, s)
		put(t, f.e, f.table, deletion("k", 5))
		f.c.advance(300 * day)
		s.once = func() { between(t, f) }
		if done := prune(t, f.table); done != (versions.Pruned{}) {
			t.Errorf("%s: %+v", name, done)
		}
		want := 1
		if name == "removed" {
			want = 0
		}
		if n := stored(t, f.table); name != "replaced" && n != want {
			t.Errorf("%s: %d versions, want %d", name, n, want)
		}
		if got := get(t, f.table, "k").Found; got != (name == "replaced") {
			t.Errorf("%s: visible is %v", name, got)
		}
		verify(t, f.e)
	}
}

// Run warns of deletions that it keeps once more.
func TestRunWarnsOfDeletionsThatExpiredLongAgo(t *testing.T) {
	c := newClock()
	e := openEngine(t, newMem(), c)
	run, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	log := &untilWarning{stop: stop}
	table := mustTable(t, e, versions.Options{
		KeepDeletions: 30 * day, Clock: c.now, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	put(t, e, table, deletion("k", 2))
	c.advance(300 * day)
	if err := table.Run(run); err != nil {
		t.Error(err)
	}
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "renewed=1") {
		t.Errorf("the log is %q", got)
	}
}

// untilWarning is a log that ends a run with the first warning.
type untilWarning struct {
	bytes.Buffer
	stop func()
}

func (w *untilWarning) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("level=WARN")) {
		w.stop()
	}
	return w.Buffer.Write(line)
}
