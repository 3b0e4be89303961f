package pebble

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// DefaultCacheBytes keeps the filters and indexes of some hundred million claims at hand.
	DefaultCacheBytes = 128 << 20

	// DefaultPendingBytes is room for some 320,000 claims on UUIDs.
	DefaultPendingBytes = 16 << 20

	// DefaultMemTableBytes is room for the log of twice DefaultPendingBytes, of which sealed claims
	// leave nothing when it is flushed. It bounds how much log there is to replay after a kill,
	// twice: once to check, once for good.
	DefaultMemTableBytes = 32 << 20

	// maxMemTables is how many memory tables may wait for their flush before Apply waits for one.
	maxMemTables = 3

	// formatVersion is pinned, not "the newest": a later Pebble must not raise the format of a
	// store unasked. Raising it raises sidecar.Format, so that older builds of Hapax refuse the
	// store.
	formatVersion = pebble.FormatValueSeparation

	filterBitsPerKey = 10
	lastLevel        = 6
)

// Options configure a store. The zero value is safe; no option can lose data.
type Options struct {
	// FS is the file system, nil for the machine's own.
	FS vfs.FS

	// CacheBytes is the memory for blocks of tables, 0 for DefaultCacheBytes.
	CacheBytes int64

	// PendingBytes is the memory for claims at which they are written to tables, 0 for
	// DefaultPendingBytes. Meanwhile as many more are taken, and sorting takes a third of it: it is
	// needed two and a half times.
	PendingBytes uint64

	// MemTableBytes is the size of one of Pebble's memory tables, 0 for DefaultMemTableBytes. There
	// is one as a rule, and up to three while writing outruns the disk. They hold the log of claims
	// that are pending: with less than twice PendingBytes more of it is written twice.
	MemTableBytes uint64

	// SmallTables makes tables so small that 50,000 claims fill more than twenty: for tests and
	// damage runs.
	SmallTables bool

	runBytes int // see seal.go

	test hooks
}

// hooks break a rule on purpose, so that a test can be seen to notice.
type hooks struct {
	acknowledgeUnsynced bool // wait does not wait
	ignoreCleanRecord   bool // a clean-close record is removed unread
	ignoreChecks        bool // nothing is checked before Pebble opens the directory
	passErrorsOn        bool // Pebble sees the errors of the file system
	sealUnsynced        bool // claims go to tables before their batches are durable
	sealDropped         bool // a bucket that is dropped while its claims are sealed does not matter
	forgetFirst         bool // packed batches are removed before their claims are in tables
	forgetDrops         bool // drops are not noted for the packed batches
	backupBeside        bool // a backup may be taken while claims are sealed
}

func (o *Options) setDefaults() error {
	switch {
	case o.CacheBytes < 0:
		return fmt.Errorf("hapax: Options.CacheBytes is %d", o.CacheBytes)
	case o.CacheBytes == 0:
		o.CacheBytes = DefaultCacheBytes
	}
	switch {
	case o.MemTableBytes > 1<<30:
		return fmt.Errorf("hapax: Options.MemTableBytes is %d, the cap is %d", o.MemTableBytes, 1<<30)
	case o.MemTableBytes != 0:
	case o.SmallTables:
		o.MemTableBytes = 256 << 10
	default:
		o.MemTableBytes = DefaultMemTableBytes
	}
	o.runBytes = runBytes
	if o.SmallTables {
		o.runBytes = 8 << 10
	}
	switch {
	case o.PendingBytes > 1<<30:
		return fmt.Errorf("hapax: Options.PendingBytes is %d, the cap is %d", o.PendingBytes, 1<<30)
	case o.PendingBytes != 0:
	case o.SmallTables:
		o.PendingBytes = 64 << 10
	default:
		o.PendingBytes = DefaultPendingBytes
	}
	return nil
}

// pebbleOptions are the settings under which Pebble keeps our promises; doc.go says which.
func (o *Options) pebbleOptions(d *disk) *pebble.Options {
	p := &pebble.Options{
		FS:                          d,
		FormatMajorVersion:          formatVersion,
		Comparer:                    pebble.DefaultComparer, // its prefix is the whole key: a table's filter serves Get
		Logger:                      d.fault,
		EventListener:               &pebble.EventListener{},
		CacheSize:                   o.CacheBytes,
		MemTableSize:                o.MemTableBytes,
		MemTableStopWritesThreshold: maxMemTables,
		L0CompactionThreshold:       10, // random keys: each compaction rewrites all that is below
		L0StopWritesThreshold:       64,
		LBaseMaxBytes:               64 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
	}
	// A read never writes: no compactions because of reads.
	p.Experimental.ReadSamplingMultiplier = -1
	p.EventListener.DataCorruption = func(info pebble.DataCorruptionInfo) { d.fault.noteDamage(info.Details) }
	p.EventListener.BackgroundError = func(err error) {
		if pebble.IsCorruptionError(err) {
			d.fault.noteDamage(err)
		}
	}
	p.EventListener.FlushEnd = func(info pebble.FlushInfo) {
		if info.Err == nil {
			d.flushes.Add(1)
			d.flushed()
		}
	}
	for i := range p.Levels {
		l := &p.Levels[i]
		l.BlockSize = 8 << 10
		l.IndexBlockSize = 64 << 10
		l.Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
		if i == lastLevel { // Get does not ask the filters of the last level, so there are none
			l.FilterPolicy = pebble.NoFilterPolicy
			continue
		}
		l.FilterPolicy = bloom.FilterPolicy(filterBitsPerKey)
	}
	p.TargetFileSizes[0] = 4 << 20
	// Where a range delete in memory covers a run that is ingested, it is flushed first: then the
	// log holds our batches alone.
	p.Experimental.DisableIngestAsFlushable = func() bool { return true }
	if o.SmallTables {
		for i := range p.TargetFileSizes {
			p.TargetFileSizes[i] = 8 << 10
			p.Levels[i].BlockSize = 1 << 10
			p.Levels[i].IndexBlockSize = 1 << 10
		}
		p.LBaseMaxBytes = 64 << 10
	}
	return p
}
