package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	bbolt "go.etcd.io/bbolt"

	hapax "github.com/hapax-dev/hapax/engine/pebble"
)

// A rawStore is a store library alone, without Hapax: the baseline for the cost of the engine.
type rawStore interface {
	// put writes the pairs, blindly, in one batch that is durable on return. Any number of
	// goroutines may call it.
	put(pairs []rawPair) error
	io.Closer
}

// A rawPair is the key and value that the stores of Hapax would write for a claim.
type rawPair struct{ key, value []byte }

// A rawSetting is one of the ways to open a bare store that are tried.
type rawSetting struct {
	name string
	open func(dir string) (rawStore, error)
}

type rawPebble struct{ *pebble.DB }

// rawPebbleWith opens Pebble with engine/pebble's cache, format, filters and compression, and with
// compactions that suit blind batches: with those of engine/pebble it was slower. Pebble takes its
// memtables out of the cache, so that is larger by two, as in engine/pebble.
func rawPebbleWith(dir string, memTableBytes uint64) (rawStore, error) {
	cache := pebble.NewCache(hapax.DefaultCacheBytes + 2*int64(memTableBytes))
	defer cache.Unref()
	o := &pebble.Options{
		FormatMajorVersion:          pebble.FormatValueSeparation,
		Cache:                       cache,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: 3,
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
	last := &o.Levels[len(o.Levels)-1]
	last.FilterPolicy = pebble.NoFilterPolicy
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("opening the bare Pebble: %w", err)
	}
	return rawPebble{db}, nil
}

func (r rawPebble) put(pairs []rawPair) error {
	b := r.NewBatch()
	for _, p := range pairs {
		if err := b.Set(p.key, p.value, nil); err != nil {
			return errors.Join(err, b.Close())
		}
	}
	return errors.Join(b.Commit(pebble.Sync), b.Close())
}

// A quiet logger discards Pebble's messages. A Pebble that cannot continue ends the process.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}

func (quiet) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "the bare Pebble has failed: "+format+"\n", args...)
	os.Exit(1)
}

type rawBolt struct{ *bbolt.DB }

var rawBucket = []byte("claims")

// openRawBolt opens bbolt as engine/bolt does.
func openRawBolt(dir string) (rawStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	mapped := int64(16) << 30
	if strconv.IntSize == 32 {
		mapped = 512 << 20
	}
	db, err := bbolt.Open(dir+"/raw.bolt", 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, InitialMmapSize: int(mapped)})
	if err != nil {
		return nil, fmt.Errorf("opening the bare bbolt: %w", err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(rawBucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return rawBolt{db}, nil
}

func (r rawBolt) put(pairs []rawPair) error {
	return r.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(rawBucket)
		for _, p := range pairs {
			if err := b.Put(p.key, p.value); err != nil {
				return err
			}
		}
		return nil
	})
}
