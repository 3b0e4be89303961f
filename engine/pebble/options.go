package pebble

import (
	"cmp"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

const (
	// DefaultCacheBytes is enough for the blocks that are read again and again.
	DefaultCacheBytes = 128 << 20

	// DefaultPendingBytes is enough for about a million claims on UUIDs.
	DefaultPendingBytes = 48 << 20

	// memTablePart is Options.MemTableBytes over Options.PendingBytes by default: room for the log
	// of twice the claims that are sealed at once. Sealed claims leave nothing in the log when it
	// is flushed. It bounds the log that must be read after a kill, twice: once to check, once to
	// replay.
	memTablePart = 2

	// indexMemory is the memory for filters and indexes of tables with claims in relation to PendingBytes.
	indexMemory = 6

	// runTables is how many times the entries of a table of a run are in PendingBytes. A run of one
	// bucket then has about four tables, as these are less than half of what is counted there.
	runTables = 5

	// maxRunBytes is the maximum of the entries of a table of a run, about.
	maxRunBytes = 64 << 20

	// bucketBoundaryBytes is the size at which the next table begins at the end of a bucket: a run of
	// many buckets has eight tables, of which the index keeps so many open (internal/runs).
	bucketBoundaryBytes = 4 << 20
)

// Options configure a store. The zero value is safe; no option can lose data.
type Options struct {
	// FS is the file system, nil for the machine's own.
	FS vfs.FS

	// CacheBytes is the memory for blocks of tables, 0 for DefaultCacheBytes. Blocks also use the
	// free memory of two memtables; a third memtable takes its memory from the cache. Up to three
	// quarters of CacheBytes less one memtable, 24 MiB with the defaults, are for the filters and
	// indexes with which claims are looked up: see PendingBytes.
	CacheBytes int64

	// PendingBytes is the memory for claims at which they are written to tables, 0 for
	// DefaultPendingBytes, or for MemTableBytes / 2 if that is set and less. Meanwhile as many more
	// are accepted, and sorting takes a third of it: two and a half times this memory is needed.
	// Fewer, larger runs of tables are compacted less often; a store with little memory uses a few
	// megabytes. The filters and indexes of all tables with claims use up to six times this memory, in
	// and beyond CacheBytes.
	PendingBytes uint64

	// MemTableBytes is the size of one of Pebble's memory tables, 0 for twice PendingBytes. Two are
	// kept, and a third while writes are faster than the disk. They hold the log of pending claims:
	// with less than twice PendingBytes, more of it is written twice.
	MemTableBytes uint64

	// LinkBackups makes Backup link the tables instead of copying them, where the file system can do
	// that. Such a backup takes no time and, at first, no space. But damage to a table is damage to
	// both, so that it replaces no copy on another disk.
	LinkBackups bool

	// Logger receives what Open finds wrong with the modes of the directory. nil = slog.Default().
	Logger *slog.Logger

	// SmallTables makes tables so small that 50,000 claims fill more than twenty: for tests and
	// damage runs.
	SmallTables bool

	runBytes, boundaryBytes int           // see cuts.go
	maxRuns                 int           // see usualMaxRuns; tests set it
	indexBytes              uint64        // of the index of runs; tests set these two
	recentTables            int           // see runs.Options.Recent
	startupTime             time.Duration // see startup.go; tests set it
	copy                    *copyOptions  // nil for a store whose waits are to be believed
}

func (o *Options) setDefaults() error {
	switch {
	case o.CacheBytes < 0:
		return fmt.Errorf("hapax: Options.CacheBytes is %d", o.CacheBytes)
	case o.CacheBytes == 0:
		o.CacheBytes = DefaultCacheBytes
	}
	if o.PendingBytes > maxTableBytes {
		return fmt.Errorf("hapax: Options.PendingBytes is %d, the cap is %d", o.PendingBytes, maxTableBytes)
	}
	if o.MemTableBytes > maxTableBytes {
		return fmt.Errorf("hapax: Options.MemTableBytes is %d, the cap is %d", o.MemTableBytes, maxTableBytes)
	}
	if o.MemTableBytes != 0 && o.MemTableBytes < minMemTableBytes {
		return fmt.Errorf("hapax: Options.MemTableBytes is %d: give %d or more, or 0 for the default", o.MemTableBytes, minMemTableBytes)
	}
	o.Logger = untrusted.Logger(o.Logger)
	if o.startupTime == 0 {
		o.startupTime = startupTime
	}
	if o.maxRuns == 0 {
		o.maxRuns = usualMaxRuns
	}
	pending, memTable := uint64(DefaultPendingBytes), uint64(memTablePart*DefaultPendingBytes)
	if o.SmallTables {
		pending, memTable = 64<<10, 256<<10
	}
	if o.PendingBytes == 0 {
		o.PendingBytes = pending
		if o.MemTableBytes != 0 {
			o.PendingBytes = min(pending, o.MemTableBytes/memTablePart)
		}
	} else if !o.SmallTables {
		memTable = min(memTablePart*o.PendingBytes, maxTableBytes)
	}
	o.indexBytes = cmp.Or(o.indexBytes, indexMemory*o.PendingBytes)
	o.runBytes = int(min(o.PendingBytes/runTables, maxRunBytes))
	o.boundaryBytes = min(bucketBoundaryBytes, o.runBytes)
	if o.SmallTables {
		o.runBytes, o.boundaryBytes = 8<<10, 2<<10
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = max(memTable, minMemTableBytes)
	}
	return nil
}

const (
	// maxTableBytes is the maximum of PendingBytes and of MemTableBytes.
	maxTableBytes = 1 << 30

	// minMemTableBytes is the minimum of MemTableBytes; Pebble fails with a few hundred bytes.
	minMemTableBytes = 64 << 10
)

// copyOptions make a store a copy.
type copyOptions struct {
	identity storage.Identity // with which the store is created, zero if it must exist
}

// kind returns the kind of the store.
func (o *Options) kind() sidecar.Kind {
	if o.copy != nil {
		return sidecar.Pebble.Copy()
	}
	return sidecar.Pebble
}

// identity returns the identity of a store that is created.
func (o *Options) identity() (storage.Identity, error) {
	switch {
	case o.copy == nil:
		return storage.NewIdentity(), nil
	case o.copy.identity == storage.Identity{}:
		return storage.Identity{}, fmt.Errorf("hapax: there is no copy: %w", fs.ErrNotExist)
	}
	return o.copy.identity, nil
}
