//go:build unix

package pebble

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// BenchmarkLookUpRuns looks up random claims, and keys without one, in runs of 100,000, by Pebble and
// by the index of runs. The index keeps all runs, also those that Pebble has compacted. Set TMPDIR to
// a directory on a disk.
//
//	go test ./engine/pebble -run - -bench LookUpRuns -benchtime 100000x
func BenchmarkLookUpRuns(b *testing.B) {
	const batches, size = 100, 1000
	for _, runs := range []int{12, 64, 128} {
		s, err := Open(b.TempDir()+"/store", Options{FS: vfs.Default, CacheBytes: 1 << 30, PendingBytes: 16 << 20})
		if err != nil {
			b.Fatal(err)
		}
		var keys [][]byte
		r := rng(1)
		for seq := range uint64(runs * batches) {
			batch := randomBatch(r, size)
			batch.Seq = seq + 1
			mustApply(b, s, batch)
			for _, c := range batch.Claims {
				keys = append(keys, spaced(claimSpace, c.Key))
			}
			if batch.Seq%batches == 0 {
				mustSealAll(b, s)
			}
		}
		lookUp := func(name string, get func(key []byte) bool) {
			b.Run(fmt.Sprintf("%s/%d", name, runs), func(b *testing.B) {
				for range 100_000 {
					get(keys[r.IntN(len(keys))])
				}
				misses, began := s.core.db.Metrics().BlockCache.Misses, processorTime()
				b.ResetTimer()
				for range b.N {
					get(keys[r.IntN(len(keys))])
				}
				b.ReportMetric(float64(processorTime()-began)/float64(b.N), "cpu-ns/op")
				b.ReportMetric(float64(s.core.db.Metrics().BlockCache.Misses-misses)/float64(b.N), "misses/op")
			})
		}
		lookUp("pebble", func(key []byte) bool { _, found, err := s.reader.get(key); return found && err == nil })
		lookUp("index", func(key []byte) bool { record, _ := s.core.recentRuns.Get(key); return record != nil })
		for i, key := range keys {
			keys[i] = append(key[:len(key)-1:len(key)-1], key[len(key)-1]^1)
		}
		lookUp("absent", func(key []byte) bool { record, _ := s.core.recentRuns.Get(key); return record != nil })
		mustClose(b, s)
	}
}

// BenchmarkLookUpNewWeek looks up keys without a claim in the newest of four weeks, one after the other,
// of which the index has no room for the oldest.
//
//	go test ./engine/pebble -run - -bench LookUpNewWeek -benchtime 20000x
func BenchmarkLookUpNewWeek(b *testing.B) {
	const weeks, runs, batches = 4, 100, 10
	s, err := Open(b.TempDir()+"/store", Options{FS: vfs.Default, CacheBytes: 256 << 20, PendingBytes: 384 << 10})
	if err != nil {
		b.Fatal(err)
	}
	defer mustClose(b, s)
	r, seq := rng(1), uint64(0)
	random := func(week int) *storage.Batch {
		batch := randomBatch(r, 1000)
		prefix := storage.Bucket{Scope: "orders", Week: week0 + weekbucket.Week(week)}.AppendPrefix(nil)
		for _, c := range batch.Claims {
			copy(c.Key, prefix)
		}
		return batch
	}
	for week := range weeks {
		for n := range runs * batches {
			batch := random(week)
			seq++
			batch.Seq = seq
			mustApply(b, s, batch)
			if n%batches == batches-1 {
				mustSealAll(b, s)
			}
		}
	}
	s.core.startup.end()
	eventually(b, "a refresh", func() bool { return len(s.core.recentRuns.Changed()) == 0 })
	time.Sleep(time.Second)
	index := s.core.recentRuns.Status()
	absent := random(weeks - 1).Claims
	for i := range b.N {
		if i == min(1000, b.N-1) {
			b.ResetTimer()
		}
		if _, found, err := s.Claim(absent[i%len(absent)].Key); found || err != nil {
			b.Fatal(found, err)
		}
	}
	b.ReportMetric(float64(len(index.Tables)), "tables")
	b.ReportMetric(float64(index.Bytes)/float64(s.core.o.indexBytes), "of-limit")
}

func processorTime() int64 {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return r.Utime.Nano() + r.Stime.Nano()
}
