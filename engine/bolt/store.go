package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	bbolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Store is a storage.Store in one bbolt file. Make it with Open.
type Store struct {
	// Each part refers to the parts that it needs, and to none that needs it. The exported methods
	// of embedded parts are methods of the Store.
	storage.OneEngine
	core
	identity
	reader
	claimReader
	writer
	journal
	sidecars
	reclaimer
	dropper
	meter
	verifier
	backups

	lastSeq uint64 // when opened
	closing sync.Once
	closed  error // what Close has returned
}

var _ storage.Store = (*Store)(nil)

// Open opens the store in dir, and creates it if dir is missing or empty.
//
// When it returns, every batch up to LastSeq is durable. It returns an error that wraps
// storage.ErrLocked if the directory is open elsewhere, storage.ErrForeign if it is not a store of
// this package, storage.ErrNewerFormat, or storage.ErrDamaged; the file is untouched then.
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
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// newStore combines a store's parts. None of them is used before the store is open.
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
	// Check before the lock file is made: a foreign directory remains unchanged.
	if _, err := survey(s.dir); err != nil {
		return err
	}
	if err := s.dir.Lock(s.o.LockTimeout); err != nil {
		return err
	}
	for _, warning := range s.dir.Warnings() {
		s.o.Logger.Warn("hapax: " + warning)
	}
	s.dir.Protect(isOurs)
	exists, err := survey(s.dir)
	if err != nil {
		return err
	}
	if !exists {
		if err := create(s.dir, s.o); err != nil {
			return err
		}
	}
	if s.id, err = sidecar.ReadIdentity(s.dir.FS(), s.dir.Path(), sidecar.Bolt); err != nil {
		return err
	}
	format, err := sidecar.ReadFormat(s.dir.FS(), s.dir.Path())
	if err != nil {
		return err
	}
	s.raised = format == sidecar.Bolt.Format
	tx, err := s.examine()
	if err != nil {
		return err
	}
	s.txid.Store(tx.txid)
	if err := s.openDB(); err != nil {
		return err
	}
	if err := errors.Join(s.dir.Track(sidecar.IdentityName), s.dir.Track(fileName)); err != nil {
		return fmt.Errorf("hapax: opening the store: %w", err)
	}
	s.dir.Watch(func(err error) { _ = s.fail(err) })
	return nil
}

// examine makes the existing file durable and then checks it. Nothing is written.
func (s *Store) examine() (*readTx, error) {
	var err error
	if s.file, err = s.dir.OpenFile(fileName, os.O_RDWR); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, damaged("it is missing")
		}
		return nil, fmt.Errorf("hapax: opening the store: %w", err)
	}
	// After a kill the newest pages may be only in the page cache.
	if err := errors.Join(s.file.Sync(), s.dir.Sync()); err != nil {
		return nil, fmt.Errorf("hapax: syncing %s: %w", fileName, err)
	}
	record, closed, err := readClean(s.dir)
	if err != nil {
		return nil, err
	}
	s.clean = closed
	if closed {
		if err := record.attest(s.file, s.id); err != nil {
			return nil, err
		}
	}
	tx, newest, err := s.newestTx()
	if err != nil {
		return nil, err
	}
	h, err := tx.head()
	if err != nil {
		return nil, err
	}
	if !h.belongsTo(s.id) {
		return nil, damaged("it is of another store or another copy than %s", sidecar.IdentityName)
	}
	if closed && (record.seq != h.seq || record.txid != h.txid) {
		return nil, damaged("%s is of batch %d, the file of batch %d", cleanName, record.seq, h.seq)
	}
	if !closed {
		// One sequential pass, so that the walk along the trees finds the pages in memory.
		if _, _, err := hashFile(s.file); err != nil {
			return nil, err
		}
		if err := tx.check(context.Background(), newest.freelist, errFirst); err != nil {
			return nil, err
		}
	}
	s.lastSeq, s.seq = h.seq, h.seq
	return tx, nil
}

func (s *Store) openDB() error {
	err := guard(func() (err error) {
		s.db, err = bbolt.Open(s.path(fileName), 0o600, s.o.bbolt(s.dir))
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", storage.ErrLocked, s.path(fileName))
	}
	if err != nil {
		return fmt.Errorf("hapax: opening %s: %w", fileName, err)
	}
	return s.view(func(tx *readTx) error {
		if want := s.txid.Load(); tx.txid != want {
			return damaged("it changed while it was opened: transaction %d, not %d", tx.txid, want)
		}
		return nil
	})
}

// LastSeq returns the number of the newest batch at Open.
func (s *Store) LastSeq() uint64 { return s.lastSeq }

// Close checks the whole store, leaves a record of the file's checksum that the next Open compares,
// and releases the directory. It returns storage.ErrDamaged, and leaves no record, if the check
// finds something. A store that was not written since it was opened after a clean close already has
// its record. A second Close returns the result of the first.
func (s *Store) Close() error {
	s.Retire()
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Store) close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	var err error
	if moved := s.dir.Check(); moved != nil {
		err = s.fail(moved)
	}
	if s.failure.Load() == nil && !s.stuck.Load() && !s.clean {
		err = s.leaveClean()
	}
	return errors.Join(err, s.release())
}

func (s *Store) leaveClean() error {
	err := s.view(func(tx *readTx) error {
		newest, _, err := readMetas(s.file, s.pageSize)
		if err != nil {
			return damaged("%w", err)
		}
		return tx.check(context.Background(), newest.freelist, errFirst)
	})
	if err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("hapax: syncing %s: %w", fileName, err)
	}
	return writeClean(s.files(), s.dir.Path(), s.file, s.id, s.seq, s.txid.Load())
}
