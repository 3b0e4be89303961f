package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
)

// BenchmarkWriteRun writes a table of the default size to a run, on a file system in memory.
//
//	go test ./engine/pebble -run - -bench WriteRun -benchtime 10x
func BenchmarkWriteRun(b *testing.B) {
	m, r := memtable.New(DefaultPendingBytes), rng(1)
	for seq := uint64(1); !m.IsFull(); seq++ {
		m.Apply(seq, randomBatch(r, 1000).Claims)
	}
	frozen := m.Moment(m.Freeze())
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
