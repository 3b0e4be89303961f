// Package raw opens the store libraries that Hapax is compared with, with settings that suit
// claims.
package raw

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// OpenPebble opens Pebble for random keys that are read rarely: few compactions, small blocks,
// bloom filters, and a cache of 128 MB beside two memtables, which Pebble takes out of it.
func OpenPebble(dir string, memTable uint64) (*pebble.DB, error) {
	cache := pebble.NewCache(128<<20 + 2*int64(memTable))
	defer cache.Unref()
	o := &pebble.Options{
		FormatMajorVersion:          pebble.FormatValueSeparation,
		Cache:                       cache,
		MemTableSize:                memTable,
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
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("opening the bare Pebble: %w", err)
	}
	return db, nil
}

// quiet is Pebble's logger: only failures matter.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(format string, args ...any) { slog.Error(fmt.Sprintf(format, args...)) }
func (quiet) Fatalf(format string, args ...any) { slog.Error(fmt.Sprintf(format, args...)); os.Exit(1) }
