package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
)

// A runStory is a random history of a store, with the claims that it must have.
type runStory struct {
	t        *testing.T
	fs       *crashfs.FS
	s        *Store
	random   *rand.Rand
	seq      uint64
	want     map[string]string
	limited  bool // the index does not have all tables
	answered int  // look-ups that the index answered with a record
	absent   int  // and those that it answered without
	beside   int  // of both, while tables were omitted
}

const storyScopes, storyWeeks, storyIDs = 2, 3, 16

func (y *runStory) key() []byte {
	return claimKey(fmt.Sprintf("scope%d", y.random.IntN(storyScopes)), y.random.IntN(storyWeeks), uint64(y.random.IntN(storyIDs)))
}

// write applies a batch of claims and removals. Old claims are written again, with new records.
func (y *runStory) write() {
	y.seq++
	b := &storage.Batch{Seq: y.seq}
	bucket, one := y.key(), y.limited && y.random.IntN(4) > 0
	for i := range 1 + y.random.IntN(20) {
		w := storage.ClaimWrite{Key: y.key()}
		if one {
			prefix, _ := memtable.SplitPrefix(bucket)
			_, id := memtable.SplitPrefix(w.Key)
			w.Key = append(bytes.Clone(prefix), id...)
		}
		if y.random.IntN(4) > 0 {
			w.Record = binary.AppendUvarint([]byte{byte(i)}, y.seq)
		}
		b.Claims = append(b.Claims, w)
		if delete(y.want, string(w.Key)); w.Record != nil {
			y.want[string(w.Key)] = string(w.Record)
		}
	}
	mustApply(y.t, y.s, b)
}

func (y *runStory) drop() {
	b := storage.Bucket{Scope: fmt.Sprintf("scope%d", y.random.IntN(storyScopes)), Week: week0}
	if err := y.s.Drop([]storage.Bucket{b}); err != nil {
		y.t.Fatal(err)
	}
	for key := range y.want {
		if bytes.HasPrefix([]byte(key), b.AppendPrefix(nil)) {
			delete(y.want, key)
		}
	}
}

func (y *runStory) compact() {
	from, to := spaced(claimSpace, y.key()), spaced(claimSpace, y.key())
	if bytes.Compare(from, to) > 0 {
		from, to = to, from
	}
	if err := y.s.core.db.Compact(y.t.Context(), from, append(to, 0), false); err != nil {
		y.t.Fatal(err)
	}
}

// open opens the store; sometimes the index is loaded before the next step.
func (y *runStory) open() {
	o := heldOptions(y.fs)
	if y.limited {
		o.indexBytes, o.recentTables = 100+y.random.Uint64N(300), y.random.IntN(3)
	}
	var err error
	if y.s, err = Open("store", o); err != nil {
		y.t.Fatal(err)
	}
	if y.random.IntN(2) == 0 {
		y.s.sealer.files.options.IndexBlockSize = 16 // indexes of two levels
	}
	if y.random.IntN(4) == 0 {
		return
	}
	y.s.core.startup.end()
	eventually(y.t, "the index is loaded", func() bool {
		index := y.s.core.recentRuns.Status()
		return index.Loaded && (y.limited || index.Complete)
	})
}

// crash opens the store as a crash leaves it, in which nothing is lost.
func (y *runStory) crash() {
	crashed := y.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: y.random})
	mustClose(y.t, y.s)
	y.fs = crashed
	y.open()
}

// awaitIndex waits until the index is complete.
func awaitIndex(t testing.TB, s *Store) {
	t.Helper()
	s.core.startup.end()
	eventually(t, "the index is complete", func() bool { return s.core.recentRuns.Status().Complete })
}

// check compares each look-up with the claims that must be there, and with Pebble alone.
func (y *runStory) check(after string) {
	y.t.Helper()
	for scope := range storyScopes {
		for n := range storyWeeks * storyIDs {
			key := claimKey(fmt.Sprintf("scope%d", scope), n%storyWeeks, uint64(n/storyWeeks))
			record, found, err := y.s.Claim(key)
			want, there := y.want[string(key)]
			if err != nil || found != there || string(record) != want {
				y.t.Fatalf("after batch %d, a %s: look-up of %x: %x %v %v, want %x %v", y.seq, after, key, record, found, err, want, there)
			}
			if _, known := y.s.memtable.Get(key); known {
				continue
			}
			inPebble, found, err := y.s.reader.get(spaced(claimSpace, key))
			if err != nil || found != there || !bytes.Equal(inPebble, record) {
				y.t.Fatalf("after batch %d, a %s: Pebble has %x %v %v for %x, want %x", y.seq, after, inPebble, found, err, key, record)
			}
			indexed, known := y.s.core.recentRuns.Get(spaced(claimSpace, key))
			if index := y.s.core.recentRuns.Status(); known && index.Loaded && !index.Complete {
				y.beside++
			}
			switch {
			case known && (indexed != nil) != there || known && !bytes.Equal(indexed, record):
				y.t.Fatalf("after batch %d, a %s: the index has %x for %x, want %x", y.seq, after, indexed, key, record)
			case known && there:
				y.answered++
			case known:
				y.absent++
			}
		}
	}
}

func TestLookUpsInRunsAgreeWithPebble(t *testing.T) {
	steps := 80
	if os.Getenv("HAPAX_SWEEP") == "all" {
		steps = 5000
	}
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2 // with and without a limit
	}
	beside := 0
	for seed := range seeds {
		y := &runStory{t: t, fs: crashfs.New(), random: rng(seed), limited: seed%2 > 0, want: make(map[string]string)}
		y.open()
		for range steps {
			var did string
			switch n := y.random.IntN(100); {
			case n < 55:
				did = "write"
				y.write()
			case n < 85:
				did = "seal"
				mustSealAll(t, y.s)
			case n < 91:
				did = "drop"
				y.drop()
			case n < 95:
				did = "compaction"
				y.compact()
			case n < 97:
				did = "crash"
				y.crash()
			default:
				did = "reopening"
				mustClose(t, y.s)
				y.open()
			}
			y.check(did)
		}
		mustClose(t, y.s)
		t.Logf("seed %d: the index answered %d look-ups, and %d without a claim, %d while it was not complete", seed, y.answered, y.absent, y.beside)
		beside += y.beside
		if !y.limited && (y.answered < 10*steps || y.absent < 10*steps) {
			t.Errorf("seed %d: the index answered only %d look-ups, and %d without a claim", seed, y.answered, y.absent)
		}
	}
	if beside < 10*steps {
		t.Errorf("the index answered only %d look-ups while it was not complete", beside)
	}
}

// Each claim is written again and again while runs are ingested, compacted and forgotten. A look-up
// must not return a record that is older than one that was there before it.
func TestLookUpsBesideSealsAndCompactionsAreNeverOld(t *testing.T) {
	s := openSmall(t, vfs.NewMem())
	defer mustClose(t, s)
	const ids, batches = 100, 120
	var applied atomic.Uint64
	write := func(seq uint64) {
		b := &storage.Batch{Seq: seq}
		for id := range uint64(ids) {
			b.Claims = append(b.Claims, storage.ClaimWrite{Key: claimKey("scope", 0, id), Record: binary.BigEndian.AppendUint64(nil, seq)})
		}
		mustApply(t, s, b)
		applied.Store(seq)
	}
	write(1)
	var others sync.WaitGroup
	done := make(chan struct{})
	for n := range uint64(2) {
		others.Go(func() {
			for random := rng(n); ; {
				select {
				case <-done:
					return
				default:
				}
				least := applied.Load()
				record, found, err := s.Claim(claimKey("scope", 0, random.Uint64N(ids)))
				if err != nil || !found || binary.BigEndian.Uint64(record) < least {
					t.Errorf("after batch %d: %x %v %v", least, record, found, err)
					return
				}
			}
		})
	}
	others.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if err := s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
				t.Error(err)
				return
			}
			if n%8 > 0 {
				continue
			}
			if err := s.Drop([]storage.Bucket{{Scope: "other", Week: week0}}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for seq := uint64(2); seq <= batches; seq++ {
		write(seq)
	}
	close(done)
	others.Wait()
}

// tablesOf returns the files of a list that are still there, and how many are not.
func tablesOf(s *Store) (there, gone int) {
	for _, number := range s.core.recentRuns.Status().Tables {
		if _, err := s.core.disk.Stat(s.core.disk.path(tableName(number))); err != nil {
			gone++
		} else {
			there++
		}
	}
	return there, gone
}

func sealedRuns(t *testing.T, fsys vfs.FS, runs int) *Store {
	t.Helper()
	s := openSmall(t, fsys)
	for seq := range uint64(runs) {
		mustApply(t, s, batchOf(seq+1, 100))
		mustSealAll(t, s)
	}
	return s
}

// The space of a table that Pebble deletes is free soon.
func TestDeletedTablesAreForgotten(t *testing.T) {
	s := sealedRuns(t, vfs.NewMem(), 5)
	defer mustClose(t, s)
	if there, gone := tablesOf(s); there < 5 || gone != 0 {
		t.Fatalf("5 runs: %d tables are there, %d gone", there, gone)
	}
	awaitIndex(t, s)
	if err := s.core.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deleted tables are forgotten", func() bool {
		_, gone := tablesOf(s)
		return gone == 0 && s.core.recentRuns.Status().Complete
	})
}

// damageTable changes every so many bytes of a table, in place.
func damageTable(t *testing.T, fsys vfs.FS, path string, size, every int64) {
	t.Helper()
	f, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(100); at < size; at += every {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDamageToAnIndexedRunIsReported(t *testing.T) {
	mem := vfs.NewMem()
	s := sealedRuns(t, mem, 1)
	defer s.Close()
	table := s.core.recentRuns.Status().Tables[0]
	damageTable(t, mem, s.core.disk.path(tableName(table)), 3000, 256)
	damaged := 0
	for _, c := range batchOf(1, 100).Claims {
		record, found, err := s.Claim(c.Key)
		switch {
		case errors.Is(err, storage.ErrDamaged):
			damaged++
		case err != nil || !found || !bytes.Equal(record, c.Record):
			t.Fatalf("%x: %x %v %v", c.Key, record, found, err)
		}
	}
	if damaged == 0 || len(s.core.disk.damages.list()) != 1 {
		t.Fatalf("%d look-ups reported damage", damaged)
	}
}

// A disk that fails to read fails the look-up, and is no damage.
func TestAFailingDiskIsNoDamageOfARun(t *testing.T) {
	inj := &failing{match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileReadAt && isTable(op.Path) }}
	s := sealedRuns(t, errorfs.Wrap(vfs.NewMem(), inj), 1)
	defer s.Close()
	inj.on.Store(true)
	_, _, err := s.Claim(batchOf(1, 100).Claims[0].Key)
	if !errors.Is(err, errorfs.ErrInjected) || errors.Is(err, storage.ErrDamaged) {
		t.Fatal(err)
	}
	inj.on.Store(false)
	for _, c := range batchOf(1, 100).Claims {
		if _, found, err := s.Claim(c.Key); !found || err != nil {
			t.Fatal(found, err)
		}
	}
}
