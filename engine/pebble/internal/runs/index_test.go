package runs

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// An index finds the newest record of each claim, and knows that others are absent, without a store.
func TestAnIndexFindsTheNewestRecord(t *testing.T) {
	f, keys := newFixture(t), claimKeys(1000)
	f.ingest(keys, 300)
	f.ingest(keys[:500], 300)
	x := f.index()
	if _, known := x.Get(keys[0]); known || x.Status().Loaded {
		t.Error("an index without tables knows something")
	}
	if err := x.Refresh(f.db, nil); err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		want := "record of run 2"
		if i >= 500 {
			want = "record of run 1"
		}
		if record, known := x.Get(key); !known || string(record) != want {
			t.Fatalf("claim %d: %q %v, want %q", i, record, known, want)
		}
		if record, known := x.Get(append(key[:len(key):len(key)], 0)); !known || record != nil {
			t.Fatalf("the key after claim %d: %q %v", i, record, known)
		}
	}
	if s := x.Status(); !s.Complete || !s.Loaded || len(s.Tables) != 6 || s.Bytes == 0 || s.Drops != 0 {
		t.Errorf("%+v", s)
	}
	x.Lose()
	if _, known := x.Get(keys[0]); known || len(x.Changed()) != 1 || x.Status().Complete {
		t.Error("an index that lacks a run knows something, or asks for no refresh")
	}
	x.Close()
	if _, known := x.Get(keys[0]); known || len(x.Status().Tables) > 0 {
		t.Error("a closed index knows something")
	}
}

// A table is closed after its last look-up.
func TestATableIsOpenWhileALookUpUsesIt(t *testing.T) {
	f := newFixture(t)
	f.ingest(claimKeys(100), 100)
	x := f.loaded()
	l := x.acquire()
	table := l.groups[0][0]
	x.Close()
	if table.users.Load() != 1 {
		t.Fatalf("%d users", table.users.Load())
	}
	if record, known, err := table.get(claimKeys(100)[7]); record == nil || !known || err != nil {
		t.Fatal("a table is closed during a look-up", err)
	}
	if l.release(); table.users.Load() != 0 {
		t.Fatalf("%d users after the last look-up", table.users.Load())
	}
}

// What is beyond the limits is omitted.
func TestAListIsTrimmed(t *testing.T) {
	l := &list{coverage: coverage{loaded: true}}
	for range maxIndexed {
		l.groups = append(l.groups, group{&table{}, &table{}})
	}
	x := &Index{limit: 1}
	if x.trim(l); l.coverage.complete() || len(l.groups) != maxIndexed/2 {
		t.Errorf("%d groups of two tables, complete %v", len(l.groups), l.coverage.complete())
	}
	level := group{&table{size: 3}, &table{size: 3}, &table{size: 3}}
	l = &list{coverage: coverage{loaded: true}, groups: []group{{&table{size: 1}}, level}}
	x.limit = 8
	if x.trim(l); l.coverage.complete() || len(l.groups) != 2 || len(l.groups[1]) != 2 || len(level) != 3 {
		t.Errorf("%v, complete %v: want two tables of the level", l.groups, l.coverage.complete())
	}
	m := &mirror{index: newFixture(t).index(), tables: maxIndexed}
	if _, err := m.table(pebble.SSTableInfo{}); !errors.Is(err, errNoRoom) {
		t.Error(err)
	}
}
