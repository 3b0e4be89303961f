package bolt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"

	bbolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A Store is an storage.Store in one bbolt file. Make it with Open.
type Store struct {
	dir      string
	o        Options
	identity storage.Identity
	lastSeq  uint64 // when opened

	lock     io.Closer // the directory's
	file     *os.File  // for reads with pread
	db       *bbolt.DB
	pageSize int

	// txid is the newest transaction that is known to be durable. Every read sees it, or a later
	// one.
	txid    atomic.Uint64
	written atomic.Uint64 // bytes, see Usage

	// writing is held by the goroutine that changes the file, for one transaction, and guards the
	// fields below it.
	writing sync.Mutex
	clean   bool   // CLEAN is there
	raised  bool   // the store has this build's format
	seq     uint64 // of the newest batch

	// sidecars is held while a sidecar is written: two writes of one name would share the temporary
	// file.
	sidecars sync.Mutex

	// failure is the first error of a write. It is set once, and then nothing is written any more.
	failure atomic.Pointer[failure]
	// stuck says that bbolt may have kept its locks when it panicked: it is not called any more.
	stuck atomic.Bool
}

var _ storage.Store = (*Store)(nil)

// ErrFailed is wrapped by the error of the write that failed and by those of all later writes,
// together with the cause. The store has to be closed; opened again it has everything that was
// confirmed.
var ErrFailed = errors.New("hapax: bolt: a write to the store failed, nothing more is written")

type failure struct{ err error }

// Open opens the store in dir, and creates it if dir is missing or empty.
//
// When it returns, every batch up to LastSeq is durable. It returns an error that wraps
// storage.ErrLocked if the directory is open elsewhere, storage.ErrForeign if it is not a store of
// this package, storage.ErrNewerFormat, or storage.ErrDamaged; the file is untouched then.
func Open(dir string, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := sidecar.PrepareDir(dir); err != nil {
		return nil, err
	}
	dir = filepath.Clean(dir) // what PrepareDir looked at
	// Look before the lock file is made: a directory that is not ours stays as it is.
	if _, err := survey(dir); err != nil {
		return nil, err
	}
	lock, err := sidecar.Lock(dir, lockName, o.LockTimeout)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, o: o, lock: lock}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func (s *Store) open() error {
	exists, err := survey(s.dir)
	if err != nil {
		return err
	}
	if !exists {
		if err := create(s.dir, s.o); err != nil {
			return err
		}
	}
	if s.identity, err = sidecar.ReadIdentity(sidecar.OS{}, s.dir, sidecar.Bolt); err != nil {
		return err
	}
	format, err := sidecar.ReadFormat(sidecar.OS{}, s.dir)
	if err != nil {
		return err
	}
	s.raised = format == sidecar.Bolt.Format
	m, err := s.examine()
	if err != nil {
		return err
	}
	s.txid.Store(m.txid)
	return s.openDB()
}

// examine makes what is there durable and then decides whether to believe it. Nothing is written.
func (s *Store) examine() (*moment, error) {
	var err error
	if s.file, err = os.OpenFile(filepath.Join(s.dir, fileName), os.O_RDWR, 0); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, damaged("it is missing")
		}
		return nil, fmt.Errorf("hapax: opening the store: %w", err)
	}
	// After a kill the newest pages may be in the machine's memory only.
	if err := errors.Join(s.file.Sync(), sidecar.OS{}.SyncDir(s.dir)); err != nil {
		return nil, fmt.Errorf("hapax: syncing %s: %w", fileName, err)
	}
	record, closed, err := readClean(s.dir)
	if err != nil {
		return nil, err
	}
	s.clean = closed
	if closed && !s.o.unchecked {
		if err := record.attest(s.file, s.identity); err != nil {
			return nil, err
		}
	}
	m, newest, err := s.newestMoment()
	if err != nil {
		return nil, err
	}
	h, err := m.head()
	if err != nil {
		return nil, err
	}
	if !h.belongsTo(s.identity) {
		return nil, damaged("it is of another store or another copy than %s", sidecar.IdentityName)
	}
	if closed && !s.o.unchecked && (record.seq != h.seq || record.txid != h.txid) {
		return nil, damaged("%s is of batch %d, the file of batch %d", cleanName, record.seq, h.seq)
	}
	if !closed && !s.o.unchecked {
		// One pass in order, so that the walk along the trees finds the pages in memory.
		if _, _, err := hashFile(s.file); err != nil {
			return nil, err
		}
		if err := m.check(context.Background(), newest.freelist, errFirst); err != nil {
			return nil, err
		}
	}
	s.lastSeq, s.seq = h.seq, h.seq
	return m, nil
}

// newestMoment reads the meta pages.
func (s *Store) newestMoment() (*moment, meta, error) {
	pageSize, err := findPageSize(s.file)
	if err != nil {
		if errors.Is(err, storage.ErrNewerFormat) {
			return nil, meta{}, err
		}
		return nil, meta{}, damaged("%w", err)
	}
	s.pageSize = pageSize
	newest, err := examineMetas(s.file, pageSize)
	if err != nil {
		return nil, meta{}, err
	}
	info, err := s.file.Stat()
	if err != nil {
		return nil, meta{}, fmt.Errorf("hapax: opening the store: %w", err)
	}
	if newest.highWater < 4 || newest.highWater > uint64(info.Size())/uint64(pageSize) {
		return nil, meta{}, damaged("%d pages are in use, in a file of %d bytes", newest.highWater, info.Size())
	}
	return s.moment(newest.root, newest.highWater, newest.txid), newest, nil
}

func (s *Store) moment(root, highWater, txid uint64) *moment {
	return &moment{file: s.file, pageSize: s.pageSize, root: root, highWater: highWater, txid: txid, unchecked: s.o.unchecked}
}

func (s *Store) openDB() error {
	err := guard(func() (err error) {
		s.db, err = bbolt.Open(filepath.Join(s.dir, fileName), 0o600, s.o.bbolt())
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", storage.ErrLocked, filepath.Join(s.dir, fileName))
	}
	if err != nil {
		return fmt.Errorf("hapax: opening %s: %w", fileName, err)
	}
	return s.view(func(m *moment) error {
		if want := s.txid.Load(); m.txid != want {
			return damaged("it changed while it was opened: transaction %d, not %d", m.txid, want)
		}
		return nil
	})
}

// Identity returns what the store was created with.
func (s *Store) Identity() storage.Identity { return s.identity }

// LastSeq returns the number of the newest batch that was found at Open.
func (s *Store) LastSeq() uint64 { return s.lastSeq }

// Close checks everything, leaves a record of the file's checksum that the next Open compares, and
// releases the directory. It returns storage.ErrDamaged, and leaves no record, if the check finds
// something. A store that was not written to since it was opened after a clean close has its record
// already.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	var err error
	if s.failure.Load() == nil && !s.stuck.Load() && !s.clean {
		err = s.leaveClean()
	}
	return errors.Join(err, s.release())
}

func (s *Store) leaveClean() error {
	err := s.view(func(m *moment) error {
		newest, _, err := readMetas(s.file, s.pageSize)
		if err != nil {
			return damaged("%w", err)
		}
		if s.o.unchecked {
			return nil
		}
		return m.check(context.Background(), newest.freelist, errFirst)
	})
	if err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("hapax: syncing %s: %w", fileName, err)
	}
	return writeClean(s.o.files, s.dir, s.file, s.identity, s.seq, s.txid.Load())
}

// release gives back whatever open took.
func (s *Store) release() error {
	var errs []error
	if s.db != nil {
		if s.stuck.Load() {
			errs = append(errs, errors.New("hapax: bolt: the file stays locked until the process ends"))
		} else {
			errs = append(errs, guard(s.db.Close))
		}
	}
	if s.file != nil {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// view runs fn on the newest moment, whose pages stay as they are until fn returns.
func (s *Store) view(fn func(m *moment) error) error {
	failed := s.failure.Load()
	want := s.txid.Load()
	if err := s.ready(want); err != nil {
		return err
	}
	tx, err := s.begin(false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it only read
	switch id := uint64(tx.ID()); {
	case id < want && !s.o.unchecked:
		return damaged("the meta page of transaction %d is gone, %d is the newest", want, id)
	case id > want && failed != nil:
		return failed.err // what the failed write left is not known to be durable
	}
	return fn(s.momentOf(tx))
}

func (s *Store) momentOf(tx *bbolt.Tx) *moment {
	return s.moment(uint64(tx.Cursor().Bucket().Root()), uint64(tx.Size())/uint64(s.pageSize), uint64(tx.ID()))
}

// ready makes sure that bbolt finds a meta page at least as new as want. If it did not find any it
// would panic, and keep its locks forever.
func (s *Store) ready(want uint64) error {
	if s.stuck.Load() {
		return damaged("bbolt gave up on it before")
	}
	newest, _, err := readMetas(s.file, s.pageSize)
	if err != nil {
		return damaged("%w", err)
	}
	if newest.txid < want && !s.o.unchecked {
		return damaged("the meta page of transaction %d is gone, %d is the newest", want, newest.txid)
	}
	return nil
}

func (s *Store) begin(writable bool) (tx *bbolt.Tx, err error) {
	err = guard(func() (err error) {
		defer s.stuckOnPanic()
		tx, err = s.db.Begin(writable)
		return err
	})
	return tx, err
}

// stuckOnPanic is deferred: after a panic bbolt is not called any more.
func (s *Store) stuckOnPanic() {
	if p := recover(); p != nil {
		s.stuck.Store(true)
		panic(p)
	}
}

// guard runs fn, which calls bbolt, and makes an error of a panic or a memory fault: bbolt asserts
// what it reads, and reads through a mapping.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged("bbolt: %v", p)
		}
	}()
	return fn()
}

// fail makes err the store's failure, if it has none yet, and returns the failure.
func (s *Store) fail(err error) error {
	s.failure.CompareAndSwap(nil, &failure{fmt.Errorf("%w: %w", ErrFailed, err)})
	return s.failure.Load().err
}
