package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/crashfs"
	"github.com/hapax-dev/hapax/weekbucket"
)

// randomBatch returns n claims with 32-byte keys and 12-byte records, and a journal entry of their
// hashes.
func randomBatch(rng *rand.Rand, n int) *storage.Batch {
	b := &storage.Batch{Journal: make([]byte, 8*n), Claims: make([]storage.ClaimWrite, n)}
	prefix := storage.Bucket{Scope: "orders", Week: week0}.AppendPrefix(nil)
	for i := range b.Claims {
		k := append(make([]byte, 0, 32), prefix...)
		for len(k) < 32 {
			k = binary.BigEndian.AppendUint64(k, rng.Uint64())
		}
		b.Claims[i] = storage.ClaimWrite{Key: k[:32], Record: []byte("record of 12")}
		binary.BigEndian.PutUint64(b.Journal[8*i:], rng.Uint64())
	}
	return b
}

// BenchmarkApply writes durable batches of 1,000 claims, four of them in flight, and compares with
// Pebble alone.
//
//	go test ./engine/pebble -run - -bench Apply -benchtime 2000x -count 5
func BenchmarkApply(b *testing.B) {
	const n, inFlight = 1000, 4
	b.Run("hapax", func(b *testing.B) {
		s := mustOpen(b, nil, b.TempDir()+"/store", false)
		defer s.Close()
		r := rng(1)
		var waits []func() error
		for i := 0; b.Loop(); i++ {
			batch := randomBatch(r, n)
			batch.Seq = uint64(i + 1)
			wait, err := s.Apply(batch)
			if err != nil {
				b.Fatal(err)
			}
			if waits = append(waits, wait); len(waits) == inFlight {
				if err := waits[0](); err != nil {
					b.Fatal(err)
				}
				waits = waits[1:]
			}
		}
		b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "claims/s")
	})
	b.Run("pebble", func(b *testing.B) {
		o := Options{FS: vfs.Default}
		if err := o.setDefaults(); err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		db, err := pebble.Open(dir, o.pebbleOptions(newFailStopFS(vfs.Default, dir)))
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		r := rng(1)
		var waits []*pebble.Batch
		for b.Loop() {
			batch := randomBatch(r, n)
			p := db.NewBatch()
			for _, c := range batch.Claims {
				_ = p.Set(c.Key, c.Record, nil)
			}
			if err := db.ApplyNoSyncWait(p, pebble.Sync); err != nil {
				b.Fatal(err)
			}
			if waits = append(waits, p); len(waits) == inFlight {
				if err := waits[0].SyncWait(); err != nil {
					b.Fatal(err)
				}
				waits = waits[1:]
			}
		}
		b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "claims/s")
	})
}

// BenchmarkClaim looks up existing claims and absent ones. All are in tables.
//
//	go test ./engine/pebble -run - -bench 'Claim$' -benchtime 60000x
func BenchmarkClaim(b *testing.B) {
	dir := b.TempDir() + "/store"
	s := mustOpen(b, nil, dir, false)
	var keys [][]byte
	r := rng(1)
	for seq := uint64(1); seq <= 300; seq++ {
		batch := randomBatch(r, 1000)
		batch.Seq = seq
		mustApply(b, s, batch)
		for _, c := range batch.Claims {
			keys = append(keys, c.Key)
		}
	}
	if err := s.Close(); err != nil { // which moves the claims in memory to tables
		b.Fatal(err)
	}
	s = mustOpen(b, nil, dir, false)
	defer s.Close()
	if err := s.core.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	for _, hit := range []bool{true, false} {
		b.Run(fmt.Sprintf("found=%v", hit), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				k := keys[r.IntN(len(keys))]
				if !hit {
					k = append(bytes.Clone(k[:31]), byte(i), 'x')
				}
				if _, found, err := s.Claim(k); found != hit || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
	b.Run("pebble", func(b *testing.B) {
		for b.Loop() {
			_, c, err := s.core.db.Get(spaced(claimSpace, keys[r.IntN(len(keys))]))
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}

// BenchmarkReopenAfterKill opens a store after a kill with the most log that the memtables allow.
//
//	go test ./engine/pebble -run - -bench Reopen -benchtime 3x
func BenchmarkReopenAfterKill(b *testing.B) {
	for _, mb := range []uint64{4, 8, 16, 32} {
		b.Run(fmt.Sprintf("memtable=%dMB", mb), func(b *testing.B) {
			fsys := crashfs.New()
			s, err := Open("store", Options{FS: fsys, MemTableBytes: mb << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var killed *crashfs.FS
			most := int64(0)
			r := rng(1)
			for seq := uint64(1); seq <= 60*mb; seq++ {
				batch := randomBatch(r, 1000)
				batch.Seq = seq
				mustApply(b, s, batch)
				if n := int64(s.core.db.Metrics().WAL.Size); n > most && seq > 40*mb {
					most, killed = n, fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng(1)})
				}
			}
			for b.Loop() {
				b.StopTimer()
				fsys := killed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng(1)})
				b.StartTimer()
				s, err := Open("store", Options{FS: fsys, MemTableBytes: mb << 20})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				mustClose(b, s)
				b.StartTimer()
			}
			b.ReportMetric(float64(most)/(1<<20), "log-MB")
		})
	}
}

// TestDroppedSpaceComesBack drops the oldest of four weeks: after Reclaim no file contains a claim
// of it. It logs how long that takes; HAPAX_DROP sets the number of claims, such as 4000000.
func TestDroppedSpaceComesBack(t *testing.T) {
	total := 12_000
	if v := os.Getenv("HAPAX_DROP"); v != "" {
		if _, err := fmt.Sscan(v, &total); err != nil {
			t.Fatal(err)
		}
	}
	for _, scopes := range []int{1, 200} {
		t.Run(fmt.Sprintf("%d scopes", scopes), func(t *testing.T) { dropAndReclaim(t, total, scopes) })
	}
}

func dropAndReclaim(t *testing.T, total, scopes int) {
	s, err := Open(t.TempDir()+"/store", Options{SmallTables: total < 1_000_000})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	buckets := make([][]storage.Bucket, 4)
	prefixes := make([][][]byte, 4)
	for w := range buckets {
		for i := range scopes {
			b := storage.Bucket{Scope: fmt.Sprintf("scope%03d", i), Week: week0 + weekbucket.Week(w)}
			buckets[w] = append(buckets[w], b)
			prefixes[w] = append(prefixes[w], b.AppendPrefix(nil))
		}
	}
	r := rng(1)
	for seq := uint64(1); seq <= uint64(total/1000); seq++ {
		b := &storage.Batch{Seq: seq, Journal: make([]byte, 100)}
		w := int(seq-1) * 4 / (total / 1000)
		for range 1000 {
			k := append([]byte(nil), prefixes[w][r.IntN(scopes)]...)
			k = append(k, 2)
			k = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(k, r.Uint64()), r.Uint64())
			b.Claims = append(b.Claims, storage.ClaimWrite{Key: k, Record: []byte("record of 12")})
		}
		mustApply(t, s, b)
	}
	if err := s.TrimJournal(uint64(total/1000) + 1); err != nil {
		t.Fatal(err)
	}
	mustSealAll(t, s)
	tables := func() (n uint64) {
		for name, size := range sizesOf(t, s) {
			if isTable(name) {
				n += size
			}
		}
		return n
	}
	// a compaction may replace one while they are read
	eventually(t, "the tables have the oldest week", func() bool {
		return droppedKeys(t, s, buckets[0]) >= total/len(buckets)
	})
	before := tables()
	begun := time.Now()
	if err := s.Drop(buckets[0]); err != nil {
		t.Fatal(err)
	}
	dropped := time.Since(begun)
	if err := s.Reclaim(context.Background(), buckets[0]); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	// Sizes would prove nothing here, because removed packed batches and compactions of other weeks
	// also change them.
	if n := droppedKeys(t, s, buckets[0]); n != 0 {
		t.Errorf("%d keys of the dropped week are in tables", n)
	}
	if held, err := s.reclaimer.held(s.reclaimer.spans.list()); err != nil || held != 0 {
		t.Errorf("Reclaim left %d bytes to be reclaimed, %v", held, err)
	}
	eventually(t, "nothing is reclaimable", func() bool { // of what compactions leave in the background, neither
		u, err := s.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u.ReclaimableBytes == 0
	})
	t.Logf("%d claims, %d scopes: tables had %d bytes and have %d; dropped in %v, space back in %v",
		total, scopes, before, tables(), dropped, took)
}

// droppedKeys counts the keys of the buckets in the files of tables, whether or not a read finds
// them and the store still refers to the file.
func droppedKeys(t *testing.T, s *Store, buckets []storage.Bucket) (n int) {
	t.Helper()
	gone := make(map[storage.Bucket]bool, len(buckets))
	for _, b := range buckets {
		gone[b] = true
	}
	for name := range sizesOf(t, s) {
		if !isTable(name) {
			continue
		}
		live := isLive(t, s, name)
		err := eachKey(s.core.disk.path(name), func(key []byte) {
			if len(key) == 0 || key[0] != claimSpace {
				return
			}
			if b, _, err := storage.SplitKey(key[1:]); err == nil && gone[b] {
				n++
			}
		})
		if err != nil && live && isLive(t, s, name) {
			t.Fatalf("reading %s: %v", name, err)
		} // otherwise it is deleted, or a compaction was writing it
	}
	return n
}

// eachKey reads the point keys of a table, including removed and overwritten ones.
func eachKey(path string, fn func(key []byte)) (err error) {
	file, err := vfs.Default.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{Comparer: pebble.DefaultComparer})
	if err != nil {
		return err // it has closed the file
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return err
	}
	for kv := it.First(); kv != nil; kv = it.Next() {
		fn(kv.K.UserKey)
	}
	return errors.Join(it.Error(), it.Close())
}

// isLive reports whether the store refers to the table.
func isLive(t *testing.T, s *Store, name string) bool {
	t.Helper()
	levels, err := s.core.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(slices.Concat(levels...), func(info pebble.SSTableInfo) bool {
		return name == fmt.Sprintf("%06d.sst", uint64(info.BackingSSTNum))
	})
}

func sizesOf(t testing.TB, s *Store) map[string]uint64 {
	t.Helper()
	names, err := s.core.disk.List(s.core.disk.dir)
	if err != nil {
		t.Fatal(err)
	}
	sizes := make(map[string]uint64)
	for _, name := range names {
		if info, err := s.core.disk.Stat(s.core.disk.path(name)); err == nil {
			sizes[name] = uint64(info.Size())
		}
	}
	return sizes
}
