package runs

import (
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// A refresh that is ended leaves the list as it is, and one that finds no file any more is not complete.
func TestARefreshThatEndsChangesNothing(t *testing.T) {
	f := overlapping(t, 3)
	x, version := f.index(), f.version()
	before := x.list.Load()
	stop := make(chan struct{})
	close(stop)
	m := newMirror(x, before)
	if err := m.add(version, stop); !errors.Is(err, errRefreshEnded) || len(m.opened) > 0 {
		t.Errorf("ended: %v, %d tables are open", err, len(m.opened))
	}
	if err := x.Refresh(f.db, stop); !errors.Is(err, errRefreshEnded) {
		t.Errorf("ended: %v", err)
	}
	if x.list.Load() != before {
		t.Error("the list was replaced")
	}
	last := version[len(version)-1]
	if len(last) == 0 {
		last = version[0]
	}
	last[len(last)-1].FileNum += 1000
	if err := m.add(version, nil); err != nil || m.list.coverage.complete() {
		t.Errorf("a deleted table: %v, complete %v", err, m.list.coverage.complete())
	}
	m.opened.release()
}

// A version lacks the runs that were ingested after it; some may be in it in another place.
func TestRunsSinceTheVersionOfARefreshAreFirst(t *testing.T) {
	x := overlapping(t, 3).loaded()
	all := x.list.Load()
	if len(all.groups) < 3 {
		t.Fatalf("%d groups", len(all.groups))
	}
	x.since = 2
	x.publish(&list{coverage: coverage{loaded: true}, groups: append(slices.Clone(all.groups[2:]), all.groups[0])})
	if l := x.list.Load(); !l.coverage.complete() || !slices.EqualFunc(l.groups, all.groups, func(a, b group) bool { return slices.Equal(a, b) }) {
		t.Fatalf("%v, want %v", l.groups, all.groups)
	}
	x.since = 0
	x.Ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	l := x.list.Load()
	if l.coverage.complete() || len(l.groups) > 0 {
		t.Fatal("the index has older runs than one that it lacks")
	}
	x.publish(&list{coverage: coverage{loaded: true}, groups: all.groups})
	if x.list.Load() != l || len(x.changed) == 0 {
		t.Fatal("a version before a run that the index lacks is the list")
	}
}

// A run that was ingested during a refresh, and of which the index could keep only some tables, is
// not in the version of the refresh.
func TestARunSinceTheVersionOfARefreshIsWhole(t *testing.T) {
	f := newFixture(t)
	f.ingest(claimKeys(3000), 500)
	var run pebble.TableIngestInfo
	for _, table := range slices.Concat(f.version()...) {
		run.Tables = append(run.Tables, struct {
			pebble.TableInfo
			Level int
		}{table.TableInfo, 0})
	}
	x := f.index() // nothing refreshes it
	x.since = 0    // a refresh has taken the version of an empty store
	x.Ingested(run)
	whole := x.list.Load().groups[0]
	if len(whole) < 3 {
		t.Fatalf("a run of %d tables", len(whole))
	}
	x.limit = whole.size() + whole[0].size
	x.Ingested(run)
	if l := x.list.Load(); len(l.groups) != 2 || len(l.groups[1]) >= len(whole) {
		t.Fatalf("%d groups, want a run and a part of one", len(l.groups))
	}
	x.publish(&list{coverage: coverage{loaded: true}})
	if x.list.Load().coverage.complete() || len(x.changed) == 0 {
		t.Fatal("a list that lacks tables of a run is complete")
	}
}

// overlapping returns a database with some runs, of which each has all of the claims.
func overlapping(t *testing.T, runs int) *fixture {
	f := newFixture(t)
	for range runs {
		f.ingest(claimKeys(100), 100)
	}
	return f
}
