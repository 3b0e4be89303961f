package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	bbolt "go.etcd.io/bbolt"

	hapax "github.com/hapax-dev/hapax/engine/pebble"
)

// A rawStore is a store library without anything of Hapax around it: the yardstick for what the
// engine adds.
type rawStore interface {
	// put writes the pairs, blindly, in one batch that is durable on return. Any number of
	// goroutines may call it.
	put(pairs []rawPair) error
	io.Closer
}

// A rawPair is what our stores would write for a claim.
type rawPair struct{ key, value []byte }

type rawPebble struct {
	*pebble.DB
	fatal *fatal
}

// rawMemTableBytes is what blind batches are quickest with: beside the 8 MB that engine/pebble had
// while each claim was a key of its own, 16 were as quick, and 64, which it has now, took 15 % off
// (claims --baseline, one million claims).
const rawMemTableBytes = 8 << 20

// openRawPebble opens Pebble with the settings that matter for speed as engine/pebble has them:
// cache, format, filters, compression and compactions. Memory tables have the size that is best for
// it.
func openRawPebble(dir string) (rawStore, error) {
	failed := &fatal{failed: make(chan struct{})}
	cache := pebble.NewCache(hapax.DefaultCacheBytes)
	defer cache.Unref()
	o := &pebble.Options{
		FormatMajorVersion:          pebble.FormatValueSeparation,
		Cache:                       cache,
		MemTableSize:                rawMemTableBytes,
		MemTableStopWritesThreshold: 3,
		L0CompactionThreshold:       10,
		L0StopWritesThreshold:       64,
		LBaseMaxBytes:               64 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Logger:                      failed,
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
	return rawPebble{db, failed}, nil
}

// put leaves the writing to a goroutine of its own, which ends if Pebble fails in it, or waits
// forever if Pebble has failed in one of its own.
func (r rawPebble) put(pairs []rawPair) error {
	done := make(chan error, 1)
	go func() { done <- r.write(pairs) }()
	select {
	case err := <-done:
		return err
	case <-r.fatal.failed:
		return r.fatal.err
	}
}

func (r rawPebble) write(pairs []rawPair) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.fatal.note(cause)
			err = r.fatal.err
		}
	}()
	b := r.NewBatch()
	for _, p := range pairs {
		if err := b.Set(p.key, p.value, nil); err != nil {
			return errors.Join(err, b.Close())
		}
	}
	return errors.Join(b.Commit(pebble.Sync), b.Close())
}

// Close leaves a Pebble that has failed as it is: it would wait for itself.
func (r rawPebble) Close() error {
	select {
	case <-r.fatal.failed:
		return r.fatal.err
	default:
		return r.DB.Close()
	}
}

// fatal is Pebble's logger. It keeps notes to itself and remembers the first failure, of which put
// and Close tell.
type fatal struct {
	once   sync.Once
	failed chan struct{} // closed at the first failure
	err    error         // set before failed is closed
}

func (f *fatal) note(cause any) {
	f.once.Do(func() {
		f.err = fmt.Errorf("the bare Pebble has failed: %v", cause)
		close(f.failed)
	})
}

func (*fatal) Infof(string, ...any)  {}
func (*fatal) Errorf(string, ...any) {}

// Fatalf must not return, or Pebble would report success. It ends the goroutine that has failed:
// one of put's, or one of Pebble's own.
func (f *fatal) Fatalf(format string, args ...any) {
	f.note(fmt.Sprintf(format, args...))
	runtime.Goexit()
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
