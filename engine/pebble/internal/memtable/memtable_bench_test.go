package memtable

import (
	"math/rand/v2"
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// fullTable fills a table with batches of a thousand claims until it is full.
func fullTable(b *testing.B, u *Memtable, batches [][]storage.ClaimWrite) {
	for i := 0; !u.IsFull(); i++ {
		if i == len(batches) {
			b.Fatal("too few batches")
		}
		u.Apply(uint64(i+1), batches[i])
	}
}

// BenchmarkMemtableApply fills a table of 48 MiB.
//
//	go test ./engine/pebble/internal/memtable -run - -bench MemtableApply -benchtime 10x
func BenchmarkMemtableApply(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	bucket := storage.Bucket{Scope: "orders", Week: week0}
	batches := make([][]storage.ClaimWrite, 1100)
	for i := range batches {
		for range 1000 {
			batches[i] = append(batches[i], storage.ClaimWrite{Key: append(bucket.AppendPrefix(nil), random(r, 16)...), Record: []byte("record of 12")})
		}
	}
	u := New(48 << 20)
	for b.Loop() {
		fullTable(b, u, batches)
		u.Freeze()
		u.Sealed()
	}
}
