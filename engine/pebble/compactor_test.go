package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// flushDepth returns how many tables of flushes overlap in L0.
func flushDepth(t *testing.T, s *Store) int {
	t.Helper()
	_, depth, err := s.compactor.deepest(pebble.KeyRange{Start: []byte{claimSpace + 1}, End: []byte{0xFF}})
	if err != nil {
		t.Fatal(err)
	}
	return depth
}

// Tables of flushes are compacted, and no run is, also if it is many tables: the runs of a bucket are
// removed with it.
func TestFlushesAreCompactedAndRunsAreNot(t *testing.T) {
	s, err := Open("store", Options{FS: vfs.NewMem(), SmallTables: true, CacheBytes: 1 << 20, PendingBytes: 1 << 20, maxRuns: fewRuns})
	if err != nil {
		t.Fatal(err)
	}
	const runs = fewRuns - 1
	for seq := uint64(1); seq <= 3*fewRuns; seq++ {
		n := 0
		if seq <= runs {
			n = 2000
		}
		b := batchOf(2*seq, n) // of one week
		b.Seq = seq
		for i := range 100 { // the tables of a flush do not overlap
			b.State = append(b.State, storage.StateWrite{Key: fmt.Appendf(nil, "key %d", i), Value: make([]byte, 1000)})
		}
		mustApply(t, s, b)
		mustSealAll(t, s)
		if seq%maxFlushes == 0 {
			if err := s.Drop([]storage.Bucket{{Scope: "gone", Week: week0}}); err != nil { // a range delete before the runs
				t.Fatal(err)
			}
		}
	}
	eventually(t, "tables of flushes are compacted", func() bool { return flushDepth(t, s) < maxFlushes })
	eventually(t, "compactions end", func() bool { return s.core.db.Metrics().Compact.NumInProgress == 0 })
	levels, err := s.core.tables(prefixSpan([]byte{claimSpace}))
	if err != nil {
		t.Fatal(err)
	}
	// Pebble puts a run that overlaps no other in a level below.
	if _, depth, err := s.compactor.deepest(prefixSpan([]byte{claimSpace})); err != nil || depth < runs-3 {
		t.Errorf("%d of %d runs overlap in L0, %v", depth, runs, err)
	}
	below := 0
	for _, tables := range levels[1:] {
		below += len(tables)
	}
	if per := len(levels[0]) / runs; per < 5 || below > 3*per {
		t.Errorf("%d tables of claims are in L0 and %d below, of %d runs", len(levels[0]), below, runs)
	}
	for i := range 100 {
		if v, found, err := s.State(fmt.Appendf(nil, "key %d", i)); err != nil || !found || len(v) != 1000 {
			t.Fatal(i, len(v), found, err)
		}
	}
	if v, _, err := s.State([]byte("count")); err != nil || binary.BigEndian.Uint64(v) != 6*fewRuns {
		t.Error(v, err)
	}
	mustClose(t, s)
}

func TestTablesOfTheRemovedJournalAreRemoved(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	size := func() (n uint64) {
		for _, space := range []byte{journalSpace, packedSpace} {
			levels, err := s.core.tables(prefixSpan([]byte{space}))
			if err != nil {
				t.Fatal(err)
			}
			for _, table := range levels[0] {
				n += table.Size
			}
		}
		return n
	}
	const last = 2 * maxFlushes
	for seq := uint64(1); seq <= last; seq++ {
		b := batchOf(seq, 100)
		b.Journal = make([]byte, smallPending)
		for i := range b.Journal {
			b.Journal[i] = byte(rand.Uint32()) // does not compress
		}
		mustApply(t, s, b)
		must(s.core.db.Flush())
		mustSealAll(t, s)
		if err := s.TrimJournal(seq + 1); err != nil {
			t.Fatal(err)
		}
	}
	must(s.core.db.Flush())
	eventually(t, "tables of the journal are removed", func() bool { return size() < 2*smallPending })
	mustClose(t, s)
}

// An excise in the middle of a table leaves a part of it, which a backup and a crash keep.
func TestPartsOfExcisedTablesAreKept(t *testing.T) {
	fsys := crashfs.New()
	s := openSmall(t, fsys)
	const last, trimmed = 20, 4
	for seq := uint64(1); seq <= last; seq++ {
		mustApply(t, s, batchOf(seq, 100))
	}
	if err := errors.Join(s.TrimJournal(trimmed), s.core.db.Flush(), s.compactor.excise(t.Context(), journalSpace, trimKey, 0)); err != nil {
		t.Fatal(err)
	}
	levels, err := s.core.tables(prefixSpan([]byte{journalSpace}))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(slices.Concat(levels...), func(table pebble.SSTableInfo) bool { return table.Virtual }) {
		t.Fatal("no table was excised in part")
	}
	check := func(name string, s *Store) {
		if err := s.Verify(t.Context(), func(problem string) { t.Error(name, problem) }); err != nil {
			t.Error(name, err)
		}
		from := uint64(trimmed)
		if err := s.Journal(trimmed, func(seq uint64, _ []byte) error {
			if seq != from {
				t.Errorf("%s: entry %d, want %d", name, seq, from)
			}
			from++
			return nil
		}); err != nil || from != last+1 {
			t.Errorf("%s: the journal ends before %d: %v", name, from, err)
		}
	}
	check("store", s)
	if err := s.Backup(t.Context(), "backup"); err != nil {
		t.Fatal(err)
	}
	crashed := fsys.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	again := openSmall(t, crashed)
	check("after a crash", again)
	mustClose(t, again)
	backup, err := Open("backup", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	check("backup", backup)
	mustClose(t, backup)
}

// flushedOften writes one key in more tables than may overlap.
func flushedOften(t *testing.T, s *Store) {
	t.Helper()
	for i := range maxFlushes + 1 {
		must(s.core.db.Set(spaced(stateSpace, []byte("key")), []byte{byte(i)}, nil))
		must(s.core.db.Flush())
	}
}

func TestFlushesAreNotCompactedBeforeTheFirstBatch(t *testing.T) {
	fsys := crashfs.New()
	s, err := Open("store", Options{FS: fsys, SmallTables: true, CacheBytes: 1 << 20, startupTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	flushedOften(t, s)
	killed := fsys.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	nothingBeginsBefore(t, killed, ofCompaction, 1)
}

// The end of a compactor waits neither for a compaction that waits nor for one that runs.
func TestCompactorEndsAtOnce(t *testing.T) {
	for _, running := range []bool{false, true} {
		for _, poisoned := range []bool{false, true} {
			t.Run(fmt.Sprintf("running %v, poisoned %v", running, poisoned), func(t *testing.T) {
				held := hold(vfs.NewMem(), ofCompaction)
				s, err := Open("store", Options{FS: held, SmallTables: true, CacheBytes: 1 << 20, startupTime: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				flushedOften(t, s)
				over := newStartup() // the scheduler grants nothing before the end of the store's
				over.end()
				c := compactor{core: &core{fault: s.core.fault, db: s.core.db, startup: over}, flushed: make(chan struct{}, 1)}
				stop, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					c.compactFlushed(stop)
				}()
				eventually(t, "a compaction waits", func() bool {
					waiting, _ := s.core.db.GetWaitingCompaction()
					return waiting
				})
				if running {
					s.core.startup.end()
					<-held.begun
				}
				if poisoned {
					s.core.fault.set(errors.New("by the test"))
				} else {
					close(stop)
				}
				select {
				case <-ended:
				case <-time.After(patienceInTests):
					t.Error("it waits for the compaction")
				}
				eventually(t, "no call of Pebble is in progress", func() bool { return running && !poisoned || s.core.fault.running.Load() == 0 })
				close(held.goOn)
				<-ended
				if err := s.Close(); (err != nil) != poisoned {
					t.Error(err)
				}
			})
		}
	}
}
