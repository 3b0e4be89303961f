package pebble

import (
	"math"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/pebble/internal/runs"
)

const (
	// maxMemTables is how many memtables may wait for their flush before Apply waits for one.
	maxMemTables = 3

	// usualMemTables are the one in use and the last one, whose memory is kept for the next. Pebble
	// takes the memory of memtables out of the cache, so the cache is larger by these.
	usualMemTables = 2

	// formatVersion is pinned, not "the newest": a later Pebble must not raise the format of a
	// store by itself. Raising it raises sidecar.Format, so that older builds of Hapax reject the
	// store.
	formatVersion = pebble.FormatValueSeparation

	// usualMaxRuns is how many overlapping runs stay in L0 before the compactor compacts them all. With
	// twice as many, Pebble would, about fifteen at a time, each time with all that is below. Keys are random
	// within a bucket, so that a compaction rewrites all lower tables, and a bucket that is dropped
	// before needs none: the more runs there are, the less is written. Look-ups have an index of their
	// own (internal/runs), and other data is compacted by its own rule (compactor.go).
	usualMaxRuns = 128

	// maxRunTables is how many tables a run has on average before their number causes a compaction.
	// With claims in many buckets, a run of DefaultPendingBytes has eight (bucketBoundaryBytes).
	maxRunTables = 32

	// lastLevelRuns is how many runs the last level holds before there is one more level: until then,
	// a level in between only writes each claim once more.
	lastLevelRuns = 4 * usualMaxRuns

	// minLBaseBytes is the least size of the last level from which on there is one more level.
	minLBaseBytes = 64 << 20

	filterBitsPerKey = 10
	lastLevel        = 6
)

// pebbleOptions are the settings under which Pebble keeps the store's guarantees; doc.go lists
// them.
func (o *Options) pebbleOptions(d *failStopFS) *pebble.Options {
	p := &pebble.Options{
		FS:                          d,
		FormatMajorVersion:          formatVersion,
		Comparer:                    pebble.DefaultComparer, // its prefix is the whole key: a table's filter serves Get
		Logger:                      d.fault,
		EventListener:               &pebble.EventListener{},
		CacheSize:                   o.CacheBytes + usualMemTables*int64(o.MemTableBytes),
		MemTableSize:                o.MemTableBytes,
		MemTableStopWritesThreshold: maxMemTables,
		L0CompactionThreshold:       4 * o.maxRuns, // Pebble compacts at half of it
		L0CompactionFileThreshold:   2 * o.maxRuns * maxRunTables,
		L0StopWritesThreshold:       math.MaxInt32, // a damaged table may keep runs from being compacted
		LBaseMaxBytes:               int64(max(minLBaseBytes, lastLevelRuns*o.PendingBytes)),
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
	}
	// A read never writes: reads cause no compactions.
	p.Experimental.ReadSamplingMultiplier = -1
	p.EventListener.DataCorruption = func(info pebble.DataCorruptionInfo) {
		if !d.damages.note(info) {
			d.fault.noteDamage(info.Details)
		}
	}
	p.EventListener.FlushEnd = func(info pebble.FlushInfo) {
		select {
		case d.emptied <- struct{}{}:
		default:
		}
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
		if i == lastLevel { // Get does not read the filters of the last level, so there are none
			l.FilterPolicy = pebble.NoFilterPolicy
			continue
		}
		l.FilterPolicy = runs.Filters{Seed: &d.seed, Bits: filterBitsPerKey}
	}
	p.TargetFileSizes[0] = 4 << 20
	p.TargetFileSizes[1] = 32 << 20 // the index of runs keeps all tables with claims open
	p.Experimental.SpanPolicyFunc = ownTables
	// Where a range delete in memory covers a run that is ingested, it is flushed first: then the
	// log contains only the store's batches.
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

// newIndex returns the index of the claims in tables.
func newIndex(o *Options, d *failStopFS) *runs.Index {
	return runs.New(runs.Options{
		Pebble: o.pebbleOptions(d), Seed: &d.seed, CacheBytes: o.CacheBytes, Bytes: o.indexBytes, Recent: o.recentTables,
		Open: func(number uint64) (vfs.File, error) { return d.Open(d.path(tableName(number))) },
	})
}

// ownTables makes Pebble begin a table at the ends of the journal and of the packed batches, so that
// their tables can be removed as a whole, and at the end of the claims, so that a compaction of
// other data does not include runs.
func ownTables(key []byte) (policy pebble.SpanPolicy, end []byte, err error) {
	for _, end := range []byte{claimSpace + 1, journalSpace, journalSpace + 1, packedSpace, packedSpace + 1} {
		if key[0] < end {
			return policy, []byte{end}, nil
		}
	}
	return policy, nil, nil
}

// maxIndexBlock is larger than any index of a run: the index of runs keeps it as one block.
const maxIndexBlock = 64 << 20

// runOptions are those of a table in L0, where overlapping runs are put.
func runOptions(o *pebble.Options) sstable.WriterOptions {
	own := *o
	own.EnsureDefaults() // or MakeWriterOptions dereferences a nil
	w := own.MakeWriterOptions(0, formatVersion.MaxTableFormat())
	w.IndexBlockSize = maxIndexBlock
	w.BlockSize *= 2 // fewer bytes of indexes and checksums
	return w
}
