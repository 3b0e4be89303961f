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

// ErrFailed is wrapped by the error of the write that failed and by those of all later writes,
// together with the cause. The store must be closed; opened again, it has all confirmed batches.
var ErrFailed = errors.New("hapax: bolt: a write to the store failed, nothing more is written")

// A core is what the parts of a store share: directory, file, bbolt, and whether a write has failed.
type core struct {
	dir *storedir.Dir // locked
	o   Options

	file     *os.File // for reads with pread
	db       *bbolt.DB
	pageSize int

	// txid is the newest transaction known to be durable. Every read sees it, or a later one.
	txid    atomic.Uint64
	written atomic.Uint64 // bytes, see Usage

	// failure is the first error of a write. It is set once, and then nothing is written any more.
	failure atomic.Pointer[failure]
	// stuck says that bbolt may have kept its locks when it panicked: it is not called any more.
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

// path returns the path of a file in the directory.
func (c *core) path(name string) string { return filepath.Join(c.dir.Path(), name) }

// files returns the file system for sidecars and other small files.
func (c *core) files() sidecar.FS { return c.o.files(c.dir.FS()) }

// release releases all that open has acquired.
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

// view runs fn on the newest state, whose pages do not change until fn returns.
func (c *core) view(fn func(tx *readTx) error) error {
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
		return failed.err // the state after the failed write may not be durable
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

// ready checks that bbolt finds a meta page at least as new as want. If bbolt found none, it would
// panic, and keep its locks forever.
func (c *core) ready(want uint64) error {
	if c.stuck.Load() {
		return pages.Damaged("bbolt gave up on it before")
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

// stuckOnPanic is deferred: after a panic bbolt is not called any more.
func (c *core) stuckOnPanic() {
	if p := recover(); p != nil {
		c.stuck.Store(true)
		panic(p)
	}
}

// guard runs fn, which calls bbolt, and turns a panic or a memory fault into an error: bbolt
// asserts its data, and reads through a mapping.
func guard(fn func() error) error {
	return guardAs(fmt.Errorf("%w: %s", storage.ErrDamaged, fileName), fn)
}

// guardAs is guard with what the error wraps.
func guardAs(failed error, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: bbolt: %v", failed, p)
		}
	}()
	return fn()
}

// fail makes err the store's failure, if it has none yet, and returns the failure.
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
