package bolt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
	bbolt "go.etcd.io/bbolt"
)

// ErrFailed means that a write has failed. The errors of that write and of all later ones wrap
// ErrFailed and the cause. Close the store; when it is opened again, it has all confirmed batches.
var ErrFailed = errors.New("hapax: bolt: a write to the store failed, nothing more is written")

// A core has what the parts of a store share: directory, file, bbolt, and whether a write has
// failed.
type core struct {
	dir *storedir.Dir // locked
	o   Options

	file     *os.File  // for reads with pread
	db       *bbolt.DB // nil for a Reader
	fixed    *readTx   // of a Reader, nil for a Store
	pageSize int

	// txid is the newest transaction known to be durable. Every read sees at least this one.
	txid    atomic.Uint64
	written atomic.Uint64 // bytes, see Usage

	// failure is the first error of a write. After it is set, nothing more is written.
	failure atomic.Pointer[failure]
	// stuck means that bbolt has panicked and may still hold its locks, so it must not be called
	// again.
	stuck atomic.Bool
}

type failure struct{ err error }

// newestTx reads the meta pages.
func (c *core) newestTx() (*readTx, pages.Meta, error) {
	info, err := c.file.Stat()
	if err != nil {
		return nil, pages.Meta{}, fmt.Errorf("hapax: opening the store: %w", err)
	}
	tx, newest, err := pages.Newest(c.file, info.Size())
	c.pageSize = tx.PageSize
	return &readTx{tx}, newest, err
}

// newestOf is newestTx for a file of the store with that identity. It also returns the head.
func (c *core) newestOf(id storage.Identity) (*readTx, pages.Meta, head, error) {
	tx, newest, err := c.newestTx()
	if err != nil {
		return nil, newest, head{}, err
	}
	h, err := tx.head()
	if err == nil && !h.belongsTo(id) {
		err = pages.Damaged("it is of another store or another copy than %s", sidecar.IdentityName)
	}
	return tx, newest, h, err
}

// path returns the path of a file in the directory.
func (c *core) path(name string) string { return filepath.Join(c.dir.Path(), name) }

// files returns the file system for small files such as sidecars.
func (c *core) files() sidecar.FS { return c.o.files(c.dir.FS()) }

// release releases everything that Open has acquired.
func (c *core) release() error {
	var errs []error
	if c.db != nil {
		if c.stuck.Load() {
			errs = append(errs, errors.New("hapax: bolt: the file stays locked until the process ends"))
		} else {
			errs = append(errs, guard(c.db.Close))
		}
	}
	if c.file != nil {
		errs = append(errs, c.file.Close())
	}
	return errors.Join(append(errs, c.dir.Close())...)
}

// view runs fn on the newest state. Its pages do not change until fn returns.
func (c *core) view(fn func(tx *readTx) error) error {
	if c.fixed != nil {
		return fn(c.fixed)
	}
	failed := c.failure.Load()
	if failed != nil && errors.Is(failed.err, storage.ErrMoved) {
		return failed.err
	}
	want := c.txid.Load()
	if err := c.ready(want); err != nil {
		return err
	}
	tx, err := c.begin(false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it only read
	switch id := uint64(tx.ID()); {
	case id < want:
		return pages.Damaged("the meta page of transaction %d is gone, %d is the newest", want, id)
	case id > want && failed != nil:
		return failed.err // the state that the failed write left may not be durable
	}
	return fn(c.readTxOf(tx))
}

func (c *core) readTxOf(tx *bbolt.Tx) *readTx {
	return &readTx{pages.Tx{
		File:      c.file,
		PageSize:  c.pageSize,
		RootPage:  uint64(tx.Cursor().Bucket().Root()),
		HighWater: uint64(tx.Size()) / uint64(c.pageSize),
		ID:        uint64(tx.ID()),
	}}
}

// ready checks that the file has a valid meta page at least as new as want. Without one, bbolt
// would panic and keep its locks forever.
func (c *core) ready(want uint64) error {
	if c.stuck.Load() {
		return pages.Damaged("bbolt has panicked on it before")
	}
	newest, _, err := pages.ReadMetas(c.file, c.pageSize)
	if err != nil {
		return pages.Damaged("%w", err)
	}
	if newest.ID < want {
		return pages.Damaged("the meta page of transaction %d is gone, %d is the newest", want, newest.ID)
	}
	return nil
}

func (c *core) begin(writable bool) (tx *bbolt.Tx, err error) {
	err = guard(func() (err error) {
		defer c.stuckOnPanic()
		tx, err = c.db.Begin(writable)
		return err
	})
	return tx, err
}

// stuckOnPanic is deferred around calls of bbolt. After a panic, it sets stuck.
func (c *core) stuckOnPanic() {
	if p := recover(); p != nil {
		c.stuck.Store(true)
		panic(p)
	}
}

// guard runs fn, which calls bbolt, and converts a panic or a memory fault into an error: bbolt
// panics on invalid data, and reads through a mapping.
func guard(fn func() error) error {
	return guardAs(fmt.Errorf("%w: %s", storage.ErrDamaged, fileName), fn)
}

// guardAs is guard with an error for the result to wrap.
func guardAs(failed error, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: bbolt: %v", failed, p)
		}
	}()
	return fn()
}

// fail sets the store's failure to err, unless it is already set, and returns it.
func (c *core) fail(err error) error {
	c.failure.CompareAndSwap(nil, &failure{fmt.Errorf("%w: %w", ErrFailed, err)})
	return c.failure.Load().err
}

func (c *core) failed() error {
	if f := c.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// syncCopy makes durable what was written to a copy. Any other store is durable after each transaction.
func (c *core) syncCopy() error {
	if c.o.copy == nil {
		return nil
	}
	if err := c.file.Sync(); err != nil {
		return c.fail(fmt.Errorf("syncing %s: %w", fileName, err))
	}
	return nil
}
