package bolt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	bbolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Store is a storage.Store in one bbolt file. Open returns one.
type Store struct {
	// Each part refers only to parts that it needs, without cycles.
	oneEngine   storage.OneEngine
	core        core
	identity    identity
	reader      reader
	claimReader claimReader
	writer      writer
	journal     journal
	sidecars    sidecars
	dropper     dropper
	meter       meter
	verifier    verifier
	backups     backups

	lastSeq uint64 // when opened
	closing sync.Once
	closed  error // result of Close
}

var _ storage.Store = (*Store)(nil)

// Open opens the store in dir, and creates it if dir is missing or empty.
//
// When it returns, every batch up to LastSeq is durable. The error wraps storage.ErrLocked if the
// directory is open elsewhere, storage.ErrForeign if it is not a store of this package,
// storage.ErrNewerFormat, or storage.ErrDamaged; in these cases the file is unchanged.
func Open(dir string, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d, err := storedir.Open(dir)
	if err != nil {
		return nil, err
	}
	s := newStore(d, o)
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.core.release())
	}
	return s, nil
}

// newStore connects the parts of a store. None of them is used before the store is open.
func newStore(dir *storedir.Dir, o Options) *Store {
	s := &Store{core: core{dir: dir, o: o}}
	c := &s.core
	s.identity.core = c
	s.reader = reader{c}
	s.claimReader = claimReader{c}
	s.writer.core, s.writer.identity = c, &s.identity
	s.journal = journal{core: c, writer: &s.writer}
	s.sidecars.core = c
	s.dropper = dropper{core: c, writer: &s.writer}
	s.meter = meter{c}
	s.verifier = verifier{core: c, identity: &s.identity}
	s.backups = backups{core: c, identity: &s.identity}
	return s
}

func (s *Store) open() error {
	// Check before creating the lock file, so that a foreign directory remains unchanged.
	if _, err := survey(s.core.dir, s.core.o.kind()); err != nil {
		return err
	}
	if err := s.core.dir.Lock(s.core.o.LockTimeout); err != nil {
		return err
	}
	for _, warning := range s.core.dir.Warnings() {
		s.core.o.Logger.Warn("hapax: " + warning)
	}
	s.core.dir.Protect(isOurs)
	exists, err := survey(s.core.dir, s.core.o.kind())
	if err != nil {
		return err
	}
	if !exists {
		if err := create(s.core.dir, s.core.o); err != nil {
			return err
		}
	}
	if s.identity.id, err = sidecar.ReadIdentity(s.core.dir.FS(), s.core.dir.Path(), s.core.o.kind()); err != nil {
		return err
	}
	format, err := sidecar.ReadFormat(s.core.dir.FS(), s.core.dir.Path())
	if err != nil {
		return err
	}
	s.identity.raised = format == sidecar.Bolt.Format
	tx, err := s.examine()
	if err != nil {
		return err
	}
	s.core.txid.Store(tx.pages.ID)
	if err := s.openDB(); err != nil {
		return err
	}
	if err := errors.Join(s.core.dir.Track(sidecar.IdentityName), s.core.dir.Track(fileName)); err != nil {
		return fmt.Errorf("hapax: opening the store: %w", err)
	}
	s.core.dir.Watch(func(err error) { _ = s.core.fail(err) })
	return nil
}

// examine makes the existing file durable and then checks it. Nothing is written.
func (s *Store) examine() (*readTx, error) {
	var err error
	if s.core.file, err = s.core.dir.OpenFile(fileName, os.O_RDWR); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, pages.Damaged("it is missing")
		}
		return nil, fmt.Errorf("hapax: opening the store: %w", err)
	}
	// After a kill, the newest pages may exist only in the page cache.
	if err := errors.Join(s.core.file.Sync(), s.core.dir.Sync()); err != nil {
		return nil, fmt.Errorf("hapax: syncing %s: %w", fileName, err)
	}
	record, closed, err := readClean(s.core.dir)
	if err != nil {
		return nil, err
	}
	s.writer.clean = closed
	if closed {
		if err := record.attest(s.core.file, s.identity.id); err != nil {
			return nil, err
		}
	}
	tx, newest, h, err := s.core.newestOf(s.identity.id)
	if err != nil {
		return nil, err
	}
	if closed && (record.seq != h.seq || record.txid != h.txid) {
		return nil, pages.Damaged("%s is of batch %d, the file of batch %d", cleanName, record.seq, h.seq)
	}
	if !closed {
		// One sequential pass loads the pages into memory for the walk of the trees.
		if _, _, err := hashFile(s.core.file); err != nil {
			return nil, err
		}
		if err := tx.check(context.Background(), newest.Freelist, errFirst); err != nil {
			return nil, err
		}
	}
	s.lastSeq, s.writer.seq = h.seq, h.seq
	return tx, nil
}

func (s *Store) openDB() error {
	err := guard(func() (err error) {
		if s.core.db, err = bbolt.Open(s.core.path(fileName), 0o600, s.core.o.bbolt(s.core.dir)); err == nil {
			s.core.db.NoSync = s.core.o.copy != nil
		}
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", storage.ErrLocked, s.core.path(fileName))
	}
	if err != nil {
		return fmt.Errorf("hapax: opening %s: %w", fileName, err)
	}
	return s.core.view(func(tx *readTx) error {
		if want := s.core.txid.Load(); tx.pages.ID != want {
			return pages.Damaged("it changed while it was opened: transaction %d, not %d", tx.pages.ID, want)
		}
		return nil
	})
}

// LastSeq returns the number of the newest batch at Open.
func (s *Store) LastSeq() uint64 { return s.lastSeq }

// Close checks the whole store, writes a record with the file's checksum for the next Open, and
// releases the directory. If the check finds damage, it writes no record and returns
// storage.ErrDamaged. A store that was closed cleanly and not written since already has a record. A
// second Close returns the result of the first.
func (s *Store) Close() error {
	s.oneEngine.Retire()
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Store) close() error {
	s.writer.writing.Lock()
	defer s.writer.writing.Unlock()
	var err error
	if moved := s.core.dir.Check(); moved != nil {
		err = s.core.fail(moved)
	}
	if s.core.failure.Load() == nil && !s.core.stuck.Load() && !s.writer.clean {
		err = s.leaveClean()
	}
	return errors.Join(err, s.core.release())
}

func (s *Store) leaveClean() error {
	err := s.core.view(func(tx *readTx) error {
		newest, _, err := pages.ReadMetas(s.core.file, s.core.pageSize)
		if err != nil {
			return pages.Damaged("%w", err)
		}
		return tx.check(context.Background(), newest.Freelist, errFirst)
	})
	if err != nil {
		return err
	}
	if err := s.core.file.Sync(); err != nil {
		return fmt.Errorf("hapax: syncing %s: %w", fileName, err)
	}
	return writeClean(s.core.files(), s.core.dir.Path(), s.core.file, s.identity.id, s.writer.seq, s.core.txid.Load())
}

// Apply commits the batch in one transaction of bbolt, which syncs twice: the pages, then the meta
// page. So the batch is durable when Apply returns, and wait returns at once. After an error
// nothing more is written.
func (s *Store) Apply(b *storage.Batch) (wait func() error, err error) {
	return s.writer.Apply(b)
}

// Identity returns the identity with which the store was created.
func (s *Store) Identity() storage.Identity {
	return s.identity.Identity()
}

// Claim returns a copy of the record under key.
func (s *Store) Claim(key []byte) (record []byte, found bool, err error) {
	return s.claimReader.Claim(key)
}

// Scan calls fn for each claim in the span, as of the call to started. Batches may be applied
// meanwhile; the pages that they replace are not reused until the scan ends, so the file may grow.
func (s *Store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return s.claimReader.Scan(ctx, span, started, fn)
}

// Buckets calls fn for each bucket with a claim. It reads only the list of buckets.
func (s *Store) Buckets(fn func(storage.Bucket) error) error {
	return s.claimReader.Buckets(fn)
}

// State returns a copy of the value under key.
func (s *Store) State(key []byte) (value []byte, found bool, err error) {
	return s.reader.State(key)
}

// ScanState calls fn for each key and value in the span, from one snapshot.
func (s *Store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return s.reader.ScanState(span, fn)
}

// Journal calls fn for each stored entry at or after batch from, in one snapshot.
func (s *Store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	return s.journal.Journal(from, fn)
}

// TrimJournal removes the entries of batches before below, some hundred of them in each
// transaction.
func (s *Store) TrimJournal(below uint64) error {
	return s.journal.TrimJournal(below)
}

// Drop removes the claims of the buckets, some thousand pages in each transaction. First it reads
// each bucket completely, while Apply may run, and compares it with its sum: otherwise bbolt would
// free all pages to which a damaged page refers, even if they belong to another tree.
func (s *Store) Drop(buckets []storage.Bucket) error {
	return s.dropper.Drop(buckets)
}

// ReadSidecar calls read with the content of the sidecar.
func (s *Store) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	return s.sidecars.ReadSidecar(name, read)
}

// WriteSidecar replaces the sidecar. After an error of write, or if the disk is full, the old
// content remains and the store continues; any other disk error fails the store.
func (s *Store) WriteSidecar(name string, write func(io.Writer) error) error {
	return s.sidecars.WriteSidecar(name, write)
}

// Usage returns the store's sizes. DiskBytes is the size of all files in the directory,
// ReclaimableBytes the size of the free pages, which the file keeps for reuse. WrittenBytes counts
// the pages of each transaction, the meta pages and the sidecars.
func (s *Store) Usage() (storage.Usage, error) {
	return s.meter.Usage()
}

// BucketBytes estimates the size from the bucket's sum, for pages that are two thirds full.
func (s *Store) BucketBytes(b storage.Bucket) (uint64, error) {
	return s.meter.BucketBytes(b)
}

// Verify reads the whole store in one snapshot, and reports what Open would reject after a crash.
func (s *Store) Verify(ctx context.Context, report func(problem string)) error {
	return s.verifier.Verify(ctx, report)
}

// Backup copies the store, as of the call, to dir. The copy is compact: its pages are full, and
// none are free. All data is checked while it is copied, and the copy has a record of a clean
// close. Sidecars are not copied, because the engine can rebuild them from the data. An interrupted
// backup is never taken for a store.
func (s *Store) Backup(ctx context.Context, dir string) error {
	return s.backups.Backup(ctx, dir)
}

// Acquire implements storage.Store.
func (s *Store) Acquire() error { return s.oneEngine.Acquire() }

// Release implements storage.Store.
func (s *Store) Release() { s.oneEngine.Release() }

// Reclaim returns at once. Later batches reuse the pages of a dropped bucket. The file never
// shrinks; a Backup is a copy without free pages.
func (s *Store) Reclaim(context.Context, []storage.Bucket) error { return nil }

// ReclaimState returns at once, for the same reason. Removed values remain in free pages of the
// file until these are reused.
func (s *Store) ReclaimState(context.Context, storage.Span) error { return nil }
