package pebble

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// claimCold claims events of a scope in a week.
func claimCold(t *testing.T, e *engine.Engine, scope string, week, n int) (events []engine.Event) {
	t.Helper()
	for i := range n {
		events = append(events, coldEvent(scope, week, i))
	}
	if _, err := e.TryClaimBatch(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	return events
}

// dataSpots returns the first, middle and last block of the tables with claims, of those that were not there before.
func dataSpots(t *testing.T, files, before map[string][]byte) (spots []spot) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, old := before[name]; old || !isTable(name) {
			continue
		}
		for _, at := range spotsOf(t, files, name) {
			if at.block == "data" {
				spots = append(spots, at)
			}
		}
	}
	return spots
}

// underARun returns the files of a closed store: the table with claims of scope m in the week four before
// coldNow is damaged. A run above it has claims of a, of an earlier week, and of z.
func underARun(t *testing.T) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewMem()
	e, s, err := openCold(mem, nil)
	if err != nil {
		t.Fatal(err)
	}
	claimCold(t, e, "m", 4, 50)
	mustSealAll(t, s)
	if err := s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
		t.Fatal(err)
	}
	damaged := dataSpots(t, filesOf(t, mem, "store"), nil)[0]
	claimCold(t, e, "a", 5, 50)
	claimCold(t, e, "z", 1, 50)
	mustSealAll(t, s)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return flipped(t, filesOf(t, mem, "store"), damaged)
}

// Pebble reads the damaged table to find the first key, although another table has a lesser one.
func TestBucketsBeforeADamagedTableAreListed(t *testing.T) {
	e, s, err := openCold(underARun(t), func(s *Store) storage.Store { return unscreened{s} })
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	rebuilt(t, e)
	var got []string
	err = s.Buckets(func(b storage.Bucket) error { got = append(got, b.Scope); return nil })
	if !errors.As(err, new(*storage.DamageError)) || !slices.Equal(got, []string{"a", "z"}) {
		t.Errorf("%q, %v", got, err)
	}
	ev := coldEvent("m", 4, 0)
	if _, err := e.Retention().DropWeek(t.Context(), bucketOf(t, &ev).Week); !errors.Is(err, engine.ErrNotOldestWeek) {
		t.Errorf("the week after the oldest one with claims was dropped: %v", err)
	}
}

// Of any number of damaged tables in any levels: each bucket is listed, or in the damage.
func TestEachBucketIsListedOrInTheDamage(t *testing.T) {
	t.Parallel()
	listed, damaged := 0, 0
	for seed := range uint64(16) {
		mem := vfs.NewMem()
		e, s, err := openCold(mem, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := rng(seed)
		claimed := make(map[storage.Bucket]bool)
		for range 12 {
			scope, week := string(rune('a'+r.IntN(8))), 1+r.IntN(6)
			events := claimCold(t, e, scope, week, 1+r.IntN(60))
			claimed[bucketOf(t, &events[0])] = true
			if r.IntN(2) == 0 {
				mustSealAll(t, s)
			}
			if r.IntN(8) == 0 {
				if err := s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustSealAll(t, s)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		files := filesOf(t, mem, "store")
		for _, at := range dataSpots(t, files, nil) {
			if r.IntN(4) == 0 {
				files[at.table] = slices.Clone(files[at.table])
				files[at.table][at.offset] ^= 0x10
			}
		}
		if s, err = Open("store", Options{FS: diskOf(t, files, "", nil), SmallTables: true, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		got := make(map[storage.Bucket]bool)
		err = s.Buckets(func(b storage.Bucket) error { got[b] = true; return nil })
		var damage *storage.DamageError
		if err != nil && !errors.As(err, &damage) {
			t.Fatal(seed, err)
		}
		for b := range claimed {
			switch {
			case got[b]:
				listed++
			case damage != nil && damage.Concerns(b):
				damaged++
			default:
				t.Errorf("seed %d: %v is missing: %v, %v", seed, b, got, err)
			}
		}
		for b := range got {
			if !claimed[b] {
				t.Errorf("seed %d: %v was never claimed", seed, b)
			}
		}
		mustClose(t, s)
	}
	if listed == 0 || damaged == 0 {
		t.Error("nothing was tested: ", listed, damaged)
	}
}

// Claims that memory removes, and then damage, are all that is left of a bucket.
func TestClaimsForgottenBeforeDamageStopNothing(t *testing.T) {
	mem := vfs.NewMem()
	e, s, err := openCold(mem, nil)
	if err != nil {
		t.Fatal(err)
	}
	events := claimCold(t, e, "m", 4, 400)
	mustSealAll(t, s)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	files := filesOf(t, mem, "store")
	spots := dataSpots(t, files, nil)
	fsys := flipped(t, files, spots[len(spots)-1])
	if e, _, err = openCold(fsys, nil); err != nil {
		t.Fatal(err)
	}
	forgot, failed := 0, 0
	for i := range events {
		found, err := e.Admin().Forget(t.Context(), "m", events[i].ID, events[i].Time)
		switch {
		case err == nil && found:
			forgot++
		case errors.As(err, new(*storage.DamageError)):
			failed++
		default:
			t.Fatal(found, err)
		}
	}
	if forgot == 0 || failed == 0 {
		t.Fatal(forgot, failed)
	}
	killed := diskOf(t, filesOf(t, fsys, "store"), "", nil)
	_ = e.Close()
	if e, s, err = openCold(killed, func(s *Store) storage.Store { return unscreened{s} }); err != nil {
		t.Fatal(err)
	}
	var got []storage.Bucket
	err = s.Buckets(func(b storage.Bucket) error { got = append(got, b); return nil })
	if !errors.As(err, new(*storage.DamageError)) || !slices.Contains(got, bucketOf(t, &events[0])) {
		t.Error(got, err)
	}
	_ = e.Close()
}

// Of a table that ends with the removal of a bucket, in any week. Some weeks end in 0xFF.
func TestDamageOfATableThatEndsWithADropIsConfined(t *testing.T) {
	fsys := vfs.NewMem()
	s := openSmall(t, fsys)
	defer mustClose(t, s)
	for _, week := range []weekbucket.Week{0x19cfd, 0x19cfe, 0x19cff, 0x19d00, 0x1ffff} {
		b := storage.Bucket{Scope: "a", Week: week}
		if err := s.core.db.DeleteRange(bucketSpan(b).Start, bucketSpan(b).End, pebble.Sync); err != nil {
			t.Fatal(err)
		}
		if err := s.core.db.Flush(); err != nil {
			t.Fatal(err)
		}
		levels, err := s.core.db.SSTables(pebble.WithKeyRangeFilter(bucketSpan(b).Start, bucketSpan(b).End))
		if err != nil || len(levels[0]) == 0 {
			t.Fatal(levels, err)
		}
		newest := levels[0][len(levels[0])-1]
		info := pebble.DataCorruptionInfo{Path: "000001.sst"}
		info.Bounds.Start = newest.Smallest.UserKey
		info.Bounds.End.Key = newest.Largest.UserKey
		for range 2 { // an exclusive end, and an inclusive one
			d, span, ok := damageOf(&info)
			if !ok || !d.Concerns(b) || !bytes.Equal(span.Start, bucketSpan(b).Start) || bytes.Compare(span.End, bucketSpan(b).End) < 0 {
				t.Errorf("%v: %v %v %x", b, ok, d, span)
			}
			if exclusive := info.Bounds.End.Kind == 0; exclusive && d.Last != b {
				t.Errorf("%v: last is %v", b, d.Last)
			}
			info.Bounds.End.Kind++
		}
	}
}

// Stats says that a part of the store is damaged as long as events fail, also when a dropped week was cut
// out of the damaged table.
func TestDamageOutsideADroppedWeekIsStillReported(t *testing.T) {
	l := coldLayout{apart: true, compacted: true, claims: 60}
	files := coldStore(t, l)
	failed := 0
	for _, at := range dataSpots(t, files, nil) {
		e, _, err := openCold(flipped(t, files, at), nil)
		if err != nil {
			t.Fatal(err)
		}
		c := newColdCheck(e, l)
		c.all(t, coldWeeks, nil)
		for week := coldWeeks; week > 0; week-- {
			ev := coldEvent("", week, 0)
			if _, err := e.Retention().DropWeek(t.Context(), bucketOf(t, &ev).Week); err != nil {
				t.Fatal(err)
			}
			if err := e.Retention().Reclaimed(t.Context()); err != nil {
				t.Fatal(err)
			}
			stats, err := e.Stats()
			if c.all(t, week-1, nil); err != nil || c.failed > 0 && len(stats.Store.Damaged) == 0 {
				t.Errorf("%v: after the drop of week %d, %d events fail, and nothing is damaged: %v", at, week, c.failed, err)
			}
			if week == 1 && len(stats.Store.Damaged) > 0 {
				t.Errorf("%v: all weeks are dropped, and there is damage: %v", at, stats.Store.Damaged)
			}
			failed += c.failed
		}
		_ = e.Close()
	}
	if failed == 0 {
		t.Error("no event failed after a drop: nothing was tested")
	}
}
