package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
)

// fullTable fills an unsealed with batches of a thousand claims until it is full.
func fullTable(b *testing.B, u *unsealed, batches []*storage.Batch) {
	for i := 0; !u.full(); i++ {
		if i == len(batches) {
			b.Fatal("too few batches")
		}
		u.apply(uint64(i+1), batches[i].Claims)
	}
}

func randomBatches(n int) (all []*storage.Batch) {
	r := rng(1)
	for range n {
		all = append(all, randomBatch(r, 1000))
	}
	return all
}

// BenchmarkUnsealedApply fills a table of the default size, and BenchmarkWriteRun writes one to a
// run, on a file system in memory.
//
//	go test ./engine/pebble -run - -bench 'UnsealedApply|WriteRun' -benchtime 10x
func BenchmarkUnsealedApply(b *testing.B) {
	batches := randomBatches(1100)
	u := newUnsealed(DefaultPendingBytes)
	for b.Loop() {
		fullTable(b, u, batches)
		u.freeze()
		u.sealed()
	}
}

func BenchmarkWriteRun(b *testing.B) {
	u := newUnsealed(DefaultPendingBytes)
	fullTable(b, u, randomBatches(1100))
	frozen := u.freeze().frame()
	s := mustOpen(b, vfs.NewMem(), "store", false)
	defer s.Close()
	for b.Loop() {
		paths, err := s.sealer.files.write(frozen)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.sealer.files.remove(paths); err != nil {
			b.Fatal(err)
		}
	}
}
