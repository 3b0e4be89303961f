package pebble

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// fewRuns is Options.maxRuns in the tests of compactions: runs are made one by one.
const fewRuns = 24

func openFewRuns(t *testing.T, fsys vfs.FS, memTable uint64) *Store {
	t.Helper()
	s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 8 << 20, MemTableBytes: memTable, maxRuns: fewRuns})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// randomClaims applies claims of random ids in some buckets.
func randomClaims(t *testing.T, s *Store, r *rand.Rand, buckets, n int, want map[string]string) {
	t.Helper()
	b := &storage.Batch{Seq: s.writer.applied + 1}
	for range n {
		key := claimKey(fmt.Sprintf("scope%03d", r.IntN(buckets)), 0, r.Uint64())
		b.Claims = append(b.Claims, storage.ClaimWrite{Key: key, Record: fmt.Appendf(nil, "record %d", b.Seq)})
		want[string(key)] = string(b.Claims[len(b.Claims)-1].Record)
	}
	mustApply(t, s, b)
}

// randomRun makes a run of such claims.
func randomRun(t *testing.T, s *Store, r *rand.Rand, buckets, n int, want map[string]string) {
	t.Helper()
	randomClaims(t, s, r, buckets, n, want)
	if err := s.sealer.sealAll(); err != nil {
		t.Fatal(err)
	}
}

// The tables of all runs are in groups that do not overlap, also after the store was opened again.
func TestTablesOfRunsAreInGroups(t *testing.T) {
	for _, buckets := range []int{1, 5, 200} {
		t.Run(fmt.Sprint(buckets), func(t *testing.T) {
			fsys := vfs.NewMem()
			s, r, want := mustOpen(t, fsys, "store", true), rng(1), map[string]string{}
			const runs = 20
			for i := range runs {
				if i == runs/2 {
					mustClose(t, s)
					s = mustOpen(t, fsys, "store", true)
				}
				randomRun(t, s, r, buckets, 1300+r.IntN(100), want)
			}
			for key, record := range want { // also the first ones of tables
				if got, known := s.core.recentRuns.Get(spaced(claimSpace, []byte(key))); known && string(got) != record {
					t.Fatalf("look-up of %x: %q, want %q", key, got, record)
				}
			}
			borders, err := s.core.groups()
			if err != nil {
				t.Fatal(err)
			}
			levels, err := s.core.tables(prefixSpan([]byte{claimSpace}))
			if err != nil {
				t.Fatal(err)
			}
			if n, tables := len(borders)+1, len(levels[0]); n < 4 || tables > 3*runs*n/2 {
				t.Errorf("%d tables of %d runs are in %d groups", tables, runs, n)
			}
			if !maps.Equal(claimsOf(t, s), want) {
				t.Error("the claims are not those that were made")
			}
			mustClose(t, s)
		})
	}
}

func wantGroups(t *testing.T, s *Store, least int) {
	t.Helper()
	borders, err := s.core.groups()
	if err != nil || len(borders)+1 < least {
		t.Fatalf("%d groups, %v, want %d at least", len(borders)+1, err, least)
	}
}

// Close makes a small run, and Open knows no borders but those of the tables.
func TestSmallRunsAreDividedAtTheSameKeys(t *testing.T) {
	fsys, want := vfs.NewMem(), map[string]string{}
	s, r := mustOpen(t, fsys, "store", true), rng(1)
	for range 3 {
		for range 5 {
			randomRun(t, s, r, 1, 1300, want)
		}
		randomRun(t, s, r, 1, 60, want)
		wantGroups(t, s, 4)
		mustClose(t, s)
		s = mustOpen(t, fsys, "store", true)
	}
	wantGroups(t, s, 4)
	mustClose(t, s)
}

func TestRunsAreDividedWithLittlePendingBytes(t *testing.T) {
	s, err := Open("store", Options{FS: vfs.NewMem(), PendingBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	r := rng(1)
	for range 4 {
		randomRun(t, s, r, 1, 20_000, map[string]string{})
	}
	wantGroups(t, s, 3)
	mustClose(t, s)
}

// A run that is not divided makes one group of all, which is compacted at once. The runs that are made
// meanwhile are in groups again, although Pebble's tables show no borders.
func TestGroupsAfterARunThatIsNotDivided(t *testing.T) {
	held := hold(vfs.NewMem(), ofCompaction)
	s, r, want := openFewRuns(t, held, 0), rng(1), map[string]string{}
	divided := s.core.o.runBytes
	s.core.o.runBytes = 1 << 30
	for range 2 { // the first one is put below L0
		randomRun(t, s, r, 1, 1300, want)
	}
	s.core.o.runBytes = divided
	for range fewRuns + 2 {
		randomRun(t, s, r, 1, 1300, want)
	}
	if err := s.core.db.Flush(); err != nil { // wakes the compactor
		t.Fatal(err)
	}
	<-held.begun
	for range 10 {
		randomRun(t, s, r, 1, 1300, want)
	}
	close(held.goOn)
	eventually(t, "runs are compacted", func() bool {
		_, depth, err := s.compactor.deepest(prefixSpan([]byte{claimSpace}))
		return err == nil && depth < fewRuns // of 36
	})
	wantGroups(t, s, 4)
	if !maps.Equal(claimsOf(t, s), want) {
		t.Error("the claims are not those that were made")
	}
	mustClose(t, s)
}

// A few late claims of the last week make a few small tables once, and not in each run.
func TestBordersOfAnOldWeekAreForgotten(t *testing.T) {
	s, r := mustOpen(t, vfs.NewMem(), "store", true), rng(1)
	for week := range 4 {
		for range 3 {
			b := &storage.Batch{Seq: s.writer.applied + 1}
			for i := range 1300 {
				key := claimKey("scope", week-min(i/1290, week), r.Uint64()) // ten are late
				b.Claims = append(b.Claims, storage.ClaimWrite{Key: key, Record: []byte("record")})
			}
			mustApply(t, s, b)
			if err := s.sealer.sealAll(); err != nil {
				t.Fatal(err)
			}
			if n := len(s.sealer.files.borders); n < 3 || n > 5 {
				t.Fatalf("week %d: %d borders", week, n)
			}
		}
	}
	mustClose(t, s)
}

// All runs of a group are compacted in one step, and no others.
func TestRunsAreCompactedInGroups(t *testing.T) {
	s, r, want := openFewRuns(t, vfs.NewMem(), 0), rng(1), map[string]string{}
	for range fewRuns - 1 {
		randomRun(t, s, r, 1, 1300, want)
	}
	borders, err := s.core.groups()
	before := s.core.db.Metrics()
	if err != nil || len(borders) < 3 || before.Levels[lastLevel].TablesCount > 10 {
		t.Fatalf("%d tables are below L0, %d borders, %v", before.Levels[lastLevel].TablesCount, len(borders), err)
	}
	for range 3 {
		randomRun(t, s, r, 1, 1300, want)
	}
	runs := prefixSpan([]byte{claimSpace})
	if err := s.core.db.Flush(); err != nil { // wakes the compactor
		t.Fatal(err)
	}
	eventually(t, "runs are compacted", func() bool {
		_, depth, err := s.compactor.deepest(runs)
		return err == nil && depth < fewRuns/2
	})
	eventually(t, "compactions end", func() bool { return s.core.db.Metrics().Compact.NumInProgress == 0 })
	after := s.core.db.Metrics()
	written := after.Levels[lastLevel].TableBytesCompacted - before.Levels[lastLevel].TableBytesCompacted
	if size := uint64(after.Levels[lastLevel].TablesSize); written > 3*size/2 {
		t.Errorf("compactions wrote %d bytes, of which %d are left", written, size)
	}
	if !maps.Equal(claimsOf(t, s), want) {
		t.Error("the claims are not those that were made")
	}
	mustClose(t, s)
}

// A compaction of runs changes no claim, and a Drop meanwhile waits for none and stays: in look-ups, in
// scans and after a crash, also for claims in memory.
func TestCrashAndDropInACompactionOfRuns(t *testing.T) {
	mem := crashfs.New()
	held := hold(mem, ofCompaction)
	s, r, want := openFewRuns(t, held, 64<<20), rng(1), map[string]string{} // no flush
	for range fewRuns + 3 {
		randomRun(t, s, r, 2, 1300, want)
	}
	awaitIndex(t, s)
	if held.any.Load() {
		t.Fatal("a compaction began before that of runs")
	}
	if err := s.core.db.Flush(); err != nil { // wakes the compactor
		t.Fatal(err)
	}
	eventually(t, "runs are being compacted", held.any.Load)
	randomClaims(t, s, r, 2, 100, want)
	keys := slices.Sorted(maps.Keys(want))
	check := func(when string) {
		t.Helper()
		crashed := mustOpen(t, mem.CrashClone(vfs.CrashCloneCfg{}), "store", true)
		if !maps.Equal(claimsOf(t, s), want) || !maps.Equal(claimsOf(t, crashed), want) {
			t.Errorf("%s: the claims are not those that there must be", when)
		}
		mustClose(t, crashed)
		for i := 0; i < len(keys); i += 100 {
			record, found, err := s.Claim([]byte(keys[i]))
			if wanted, there := want[keys[i]]; err != nil || found != there || string(record) != wanted {
				t.Fatalf("%s: look-up of %x: %q %v %v, want %q %v", when, keys[i], record, found, err, wanted, there)
			}
		}
	}
	check("compaction")
	dropped := storage.Bucket{Scope: "scope000", Week: week0}
	if err := s.Drop([]storage.Bucket{dropped}); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(want, func(key, _ string) bool { return strings.HasPrefix(key, string(dropped.AppendPrefix(nil))) })
	check("drop")
	close(held.goOn)
	if err := s.Reclaim(t.Context(), []storage.Bucket{dropped}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.reclaimer.estimate(bucketSpan(dropped)); err != nil || n > 8<<10 {
		t.Errorf("%d bytes of the dropped bucket are left, %v", n, err)
	}
	eventually(t, "runs are compacted", func() bool {
		_, depth, err := s.compactor.deepest(prefixSpan([]byte{claimSpace}))
		return err == nil && depth < fewRuns/2
	})
	check("reclaimed")
	mustClose(t, s)
}
