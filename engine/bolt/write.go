package bolt

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	bbolt "go.etcd.io/bbolt"
)

// A writer changes the file.
type writer struct {
	core     *core
	identity *identity

	// writing is held during each transaction, and guards the fields below.
	writing sync.Mutex
	clean   bool   // CLEAN exists
	seq     uint64 // number of the newest batch
}

func (w *writer) Apply(b *storage.Batch) (wait func() error, err error) {
	err = w.update(func(t *writeTx) error {
		if b.Seq != t.head.seq+1 {
			return fmt.Errorf("batch %d after batch %d", b.Seq, t.head.seq)
		}
		t.head.seq = b.Seq
		if err := t.claims(b.Claims); err != nil {
			return err
		}
		if err := t.states(b.State); err != nil {
			return err
		}
		return t.journal(b.Seq, b.Journal)
	})
	if err != nil {
		return nil, err
	}
	return durable, nil
}

func durable() error { return nil }

// update runs fn in a transaction and commits it with a new head. Any error fails the store.
func (w *writer) update(fn func(w *writeTx) error) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if f := w.core.failure.Load(); f != nil {
		return f.err
	}
	if err := w.transact(fn); err != nil {
		return w.core.fail(err)
	}
	if err := w.core.dir.Recheck(); err != nil {
		return w.core.fail(err)
	}
	return nil
}

func (w *writer) transact(fn func(w *writeTx) error) error {
	if w.clean {
		if err := sidecar.Remove(w.core.files(), w.core.dir.Path(), cleanName); err != nil {
			return err
		}
		w.clean = false
	}
	if err := w.identity.raiseFormat(); err != nil {
		return err
	}
	if err := w.core.ready(w.core.txid.Load()); err != nil {
		return err
	}
	if err := w.grow(); err != nil {
		return err
	}
	tx, err := w.core.begin(true)
	if err != nil {
		return err
	}
	// From here on, bbolt holds its lock, which must be released even after a panic.
	t := &writeTx{tx: tx, base: w.core.readTxOf(tx), txid: uint64(tx.ID())}
	if err := guard(func() error { return t.run(w.core.txid.Load(), fn) }); err != nil {
		return errors.Join(err, w.rollBack(tx))
	}
	w.core.txid.Store(t.txid)
	w.seq = t.head.seq
	stats := tx.Stats()
	w.core.written.Add(uint64(stats.GetPageAlloc()) + uint64(w.core.pageSize)) // and the meta page
	return nil
}

func (w *writer) rollBack(tx *bbolt.Tx) error {
	if tx.DB() == nil {
		return nil // Commit has released the lock
	}
	return guard(func() error {
		defer w.core.stuckOnPanic()
		return tx.Rollback()
	})
}

// grow makes the file large enough for a small batch. bbolt itself could grow it, but keeps only
// the text of errors.
func (w *writer) grow() error {
	newest, _, err := pages.ReadMetas(w.core.file, w.core.pageSize)
	if err != nil {
		return err
	}
	info, err := w.core.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	step := growStep(size)
	w.core.db.AllocSize = step
	if size-int64(newest.HighWater)*int64(w.core.pageSize) >= minGrowStep/2 || size+int64(step) > w.core.o.MaxFileBytes {
		return nil
	}
	return errors.Join(w.core.file.Truncate(size+int64(step)), w.core.file.Sync())
}
