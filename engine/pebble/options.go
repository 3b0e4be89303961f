package pebble

import (
	"fmt"

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

	// runBytes is the size at which the next table of a run is begun; a quarter where a bucket
	// ends.
	runBytes = 8 << 20
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

	runBytes int // see run.go

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
