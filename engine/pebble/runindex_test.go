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

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A runStory is a random history of a store, with the claims that it must have.
type runStory struct {
	t        *testing.T
	fs       *vfs.MemFS
	s        *Store
	random   *rand.Rand
	seq      uint64
	want     map[string]string
	answered int // look-ups that the index answered
}

const storyScopes, storyWeeks, storyIDs = 2, 2, 24

func (y *runStory) key() []byte {
	return claimKey(fmt.Sprintf("scope%d", y.random.IntN(storyScopes)), y.random.IntN(storyWeeks), uint64(y.random.IntN(storyIDs)))
}

// write applies a batch of claims and removals. Old claims are written again, with new records.
func (y *runStory) write() {
	y.seq++
	b := &storage.Batch{Seq: y.seq}
	for i := range 1 + y.random.IntN(20) {
		w := storage.ClaimWrite{Key: y.key()}
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
	if err := y.s.db.Compact(y.t.Context(), from, append(to, 0), false); err != nil {
		y.t.Fatal(err)
	}
}

func (y *runStory) open() { y.s = openSmall(y.t, y.fs) }

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
			if _, known := y.s.unsealed.get(key); known {
				continue
			}
			inPebble, found, err := y.s.get(spaced(claimSpace, key))
			if err != nil || found != there || !bytes.Equal(inPebble, record) {
				y.t.Fatalf("after batch %d, a %s: Pebble has %x %v %v for %x, want %x", y.seq, after, inPebble, found, err, key, record)
			}
			if _, known := y.s.recentRuns.get(spaced(claimSpace, key)); known {
				y.answered++
			}
		}
	}
}

func TestLookUpsInRunsAgreeWithPebble(t *testing.T) {
	steps := 80
	if os.Getenv("HAPAX_SWEEP") == "all" {
		steps = 5000
	}
	for seed := range uint64(2) {
		y := &runStory{t: t, fs: vfs.NewMem(), random: rng(seed), want: make(map[string]string)}
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
			case n < 97:
				did = "compaction"
				y.compact()
			default:
				did = "reopening"
				mustClose(t, y.s)
				y.open()
			}
			y.check(did)
		}
		mustClose(t, y.s)
		if y.answered < 10*steps {
			t.Errorf("seed %d: the index answered only %d look-ups", seed, y.answered)
		}
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
			if err := s.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
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
	for _, r := range s.recentRuns.list.Load().runs {
		for _, t := range r {
			if _, err := s.disk.Stat(s.disk.path(tableName(t.number))); err != nil {
				gone++
			} else {
				there++
			}
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

// The space of a table that Pebble deletes is free at once.
func TestDeletedTablesAreForgotten(t *testing.T) {
	s := sealedRuns(t, vfs.NewMem(), 5)
	defer mustClose(t, s)
	runs := s.recentRuns.list.Load().runs
	if there, gone := tablesOf(s); len(runs) != 5 || there < 5 || gone != 0 {
		t.Fatalf("%d runs: %d tables are there, %d gone", len(runs), there, gone)
	}
	if err := s.db.Compact(t.Context(), []byte{claimSpace}, []byte{claimSpace + 1}, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deleted tables are forgotten", func() bool {
		_, gone := tablesOf(s)
		return gone == 0
	})
	eventually(t, "forgotten tables are closed", func() bool {
		for _, r := range runs {
			if _, err := s.disk.Stat(s.disk.path(tableName(r[0].number))); err != nil && r[0].lists.Load() != 0 {
				return false
			}
		}
		return true
	})
}

// A run without a newer one would return what the newer one has replaced.
func TestARunIsForgottenWithTheOlderOnes(t *testing.T) {
	s := sealedRuns(t, vfs.NewMem(), 5)
	defer mustClose(t, s)
	runs := s.recentRuns.list.Load().runs
	s.recentRuns.deleted(pebble.TableDeleteInfo{FileNum: 0})
	if n := len(s.recentRuns.list.Load().runs); n != 5 {
		t.Fatalf("another file is deleted: %d runs", n)
	}
	held := s.recentRuns.acquire()
	number := runs[2][0].number
	var info pebble.TableDeleteInfo
	for info.FileNum = range 1000 {
		if uint64(info.FileNum) == number {
			break
		}
	}
	s.recentRuns.deleted(info)
	if left := s.recentRuns.list.Load().runs; len(left) != 2 || left[0][0] != runs[0][0] || left[1][0] != runs[1][0] {
		t.Fatalf("%d runs are left", len(left))
	}
	if n := runs[4][0].lists.Load(); n != 1 {
		t.Fatalf("a table that a look-up uses is in %d lists", n)
	}
	held.release()
	if n := runs[4][0].lists.Load(); n != 0 {
		t.Fatalf("a table that nothing uses is in %d lists", n)
	}
}

// damageTable changes a byte of each data block of a table, in place.
func damageTable(t *testing.T, fsys vfs.FS, path string, size int64) {
	t.Helper()
	f, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(100); at < size; at += 256 {
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
	table := s.recentRuns.list.Load().runs[0][0]
	damageTable(t, mem, s.disk.path(tableName(table.number)), 3000)
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
	if damaged == 0 || s.fault.takeDamage() == nil {
		t.Fatalf("%d look-ups reported damage", damaged)
	}
}

// A disk that fails to read fails the look-up, and is no damage.
func TestAFailingDiskIsNoDamageOfARun(t *testing.T) {
	inj := &failing{match: func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileReadAt && isTable(op.Path) }}
	s := sealedRuns(t, errorfs.Wrap(vfs.NewMem(), inj), 1)
	defer s.Close()
	inj.on.Store(true)
	_, _, err := s.Claim(batchOf(1, 1).Claims[0].Key)
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

// A run that cannot be opened for look-ups is in Pebble, and so are the older ones.
func TestARunThatCannotBeOpenedIsLookedUpInPebble(t *testing.T) {
	mem := vfs.NewMem()
	s := sealedRuns(t, mem, 2)
	defer mustClose(t, s)
	s.recentRuns.ingested(pebble.TableIngestInfo{Err: errors.New("a test's")})
	b := &storage.Batch{Seq: 3, Claims: batchOf(1, 100).Claims}
	for i := range b.Claims {
		b.Claims[i].Record = []byte("newer")
	}
	opened := s.recentRuns.options
	s.recentRuns.options.Comparer = &pebble.Comparer{Name: "another"}
	mustApply(t, s, b)
	mustSealAll(t, s)
	s.recentRuns.options = opened
	for _, c := range b.Claims {
		if record, _, err := s.Claim(c.Key); err != nil || string(record) != "newer" {
			t.Fatalf("%s %v", record, err)
		}
	}
}
