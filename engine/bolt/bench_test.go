package bolt

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// BenchmarkApply commits batches to a store that already has 100,000 claims.
//
//	go test -run '^$' -bench Apply -benchtime 1s ./engine/bolt
func BenchmarkApply(b *testing.B) {
	for _, ids := range []string{"v4", "v7"} {
		for _, size := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", ids, size), func(b *testing.B) {
				s := mustOpen(b, filepath.Join(b.TempDir(), "store"), Options{})
				g := newClaims(ids)
				seq := g.fill(b, s, 0, 100_000)
				written := s.core.written.Load()
				for b.Loop() {
					seq++
					mustApply(b, s, &storage.Batch{Seq: seq, Claims: g.next(size), Journal: make([]byte, 8*size)})
				}
				n := float64(b.N * size)
				b.ReportMetric(n/b.Elapsed().Seconds(), "claims/s")
				b.ReportMetric(float64(s.core.written.Load()-written)/n, "writtenB/claim")
			})
		}
	}
}

// BenchmarkLifecycle times the steps whose cost depends on the size of the store, per million
// claims, at 500,000.
func BenchmarkLifecycle(b *testing.B) {
	const n = 500_000
	dir := filepath.Join(b.TempDir(), "store")
	s := mustOpen(b, dir, Options{})
	g := newClaims("v4")
	seq := g.fill(b, s, 0, n)
	killed := cloneOpen(b, dir)
	figure := func(name string, start time.Time) {
		b.ReportMetric(float64(time.Since(start).Milliseconds())*1e6/n, name+"-ms/M")
	}
	for b.Loop() {
		start := time.Now()
		s.TrimJournal(seq)
		figure("trim", start)
		start = time.Now()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		figure("close", start)
		start = time.Now()
		s = mustOpen(b, dir, Options{})
		figure("open-clean", start)
		start = time.Now()
		k := mustOpen(b, killed, Options{})
		figure("open-killed", start)
		start = time.Now()
		if err := k.Backup(b.Context(), filepath.Join(b.TempDir(), "backup")); err != nil {
			b.Fatal(err)
		}
		figure("backup", start)
		start = time.Now()
		for i := range 20_000 {
			if _, found, err := k.Claim(g.bucket.AppendKey(nil, fmt.Appendf(nil, "%d", i))); err != nil || found {
				b.Fatal(found, err)
			}
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/20_000, "miss-us")
		u, _ := k.Usage()
		b.ReportMetric(float64(u.DiskBytes)/n, "B/claim")
		start = time.Now()
		if err := k.Drop([]storage.Bucket{g.bucket}); err != nil {
			b.Fatal(err)
		}
		figure("drop", start)
		k.Close()
		seq++
		mustApply(b, s, &storage.Batch{Seq: seq})
	}
}

// claims makes claims with ids like UUIDs: random, or in the order of time.
type claims struct {
	bucket storage.Bucket
	rng    *rand.Rand
	sorted bool
	n      uint64
}

func newClaims(ids string) *claims {
	return &claims{bucket: storage.Bucket{Scope: "consumer", Week: 105000}, rng: rand.New(rand.NewPCG(1, 2)), sorted: ids == "v7"}
}

func (g *claims) next(n int) []storage.ClaimWrite {
	writes := make([]storage.ClaimWrite, n)
	for i := range writes {
		g.n++
		hi := g.rng.Uint64()
		if g.sorted {
			hi = g.n << 20
		}
		id := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), g.rng.Uint64())
		writes[i].Key = g.bucket.AppendKey(nil, fmt.Appendf(nil, "%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
		writes[i].Record = []byte("state+origin")
	}
	return writes
}

func (g *claims) fill(t testing.TB, s *Store, seq uint64, n int) uint64 {
	for ; n > 0; n -= 10_000 {
		seq++
		mustApply(t, s, &storage.Batch{Seq: seq, Claims: g.next(10_000), Journal: make([]byte, 80_000)})
	}
	return seq
}
