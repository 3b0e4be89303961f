// Package rawstore opens Pebble without Hapax, with settings that suit claims: the baseline for the
// cost of the engine, and for a claim that an application makes by hand.
package rawstore

import (
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"

	hapax "github.com/hapax-dev/hapax/engine/pebble"
)

// OpenPebble opens Pebble with the cache, format, filters and compression of engine/pebble, and
// with compactions that suit batches of random keys. With the compactions of engine/pebble it was
// slower. Pebble takes its memtables out of the cache, so the cache is larger by two memtables, as
// in engine/pebble. A store that is written blindly needs no filters in its last level.
func OpenPebble(dir string, memTableBytes uint64, blind bool) (*pebble.DB, error) {
	cache := pebble.NewCache(hapax.DefaultCacheBytes + 2*int64(memTableBytes))
	defer cache.Unref()
	o := &pebble.Options{
		FormatMajorVersion:          pebble.FormatValueSeparation,
		Cache:                       cache,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       10,
		L0StopWritesThreshold:       64,
		LBaseMaxBytes:               64 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Logger:                      quiet{},
	}
	o.Experimental.ReadSamplingMultiplier = -1
	o.TargetFileSizes[0] = 4 << 20
	for i := range o.Levels {
		l := &o.Levels[i]
		l.BlockSize, l.IndexBlockSize = 8<<10, 64<<10
		l.Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
		l.FilterPolicy = bloom.FilterPolicy(10)
	}
	if blind {
		o.Levels[len(o.Levels)-1].FilterPolicy = pebble.NoFilterPolicy
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("opening the bare Pebble: %w", err)
	}
	return db, nil
}

// A quiet logger discards Pebble's messages. A Pebble that cannot continue ends the process.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}

func (quiet) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "the bare Pebble has failed: "+format+"\n", args...)
	os.Exit(1)
}
