package bolt

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	bbolt "go.etcd.io/bbolt"
)

// A writer changes the file.
type writer struct {
	*core
	*identity

	// writing is held by the goroutine that changes the file, for one transaction, and guards the
	// fields below it.
	writing sync.Mutex
	clean   bool   // CLEAN is there
	seq     uint64 // of the newest batch
}

// Apply commits the batch in one transaction of bbolt, which syncs twice: the pages, then the meta
// page. So the batch is durable when Apply returns, and wait returns at once. After any error
// nothing more is written.
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

// update runs fn in a transaction and commits it, with a new head. Any error fails the store.
func (w *writer) update(fn func(w *writeTx) error) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if f := w.failure.Load(); f != nil {
		return f.err
	}
	if err := w.transact(fn); err != nil {
		return w.fail(err)
	}
	if err := w.dir.Recheck(); err != nil {
		return w.fail(err)
	}
	return nil
}

func (w *writer) transact(fn func(w *writeTx) error) error {
	if w.clean {
		if err := sidecar.Remove(w.files(), w.dir.Path(), cleanName); err != nil {
			return err
		}
		w.clean = false
	}
	if err := w.raiseFormat(); err != nil {
		return err
	}
	if err := w.ready(w.txid.Load()); err != nil {
		return err
	}
	if err := w.grow(); err != nil {
		return err
	}
	tx, err := w.begin(true)
	if err != nil {
		return err
	}
	// From here on bbolt holds its lock: it must be released, also after a panic.
	t := &writeTx{tx: tx, base: w.readTxOf(tx), txid: uint64(tx.ID())}
	if err := guard(func() error { return t.run(w.txid.Load(), fn) }); err != nil {
		return errors.Join(err, w.rollBack(tx))
	}
	w.txid.Store(t.txid)
	w.seq = t.head.seq
	stats := tx.Stats()
	w.written.Add(uint64(stats.GetPageAlloc()) + uint64(w.pageSize)) // and the meta page
	return nil
}

func (w *writer) rollBack(tx *bbolt.Tx) error {
	if tx.DB() == nil {
		return nil // Commit has released it
	}
	return guard(func() error {
		defer w.stuckOnPanic()
		return tx.Rollback()
	})
}

// grow makes space for a small batch. bbolt makes the rest, but keeps only the text of its errors.
func (w *writer) grow() error {
	newest, _, err := readMetas(w.file, w.pageSize)
	if err != nil {
		return err
	}
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	step := growStep(size)
	w.db.AllocSize = step
	if size-int64(newest.highWater)*int64(w.pageSize) >= minGrowStep/2 || size+int64(step) > w.o.MaxFileBytes {
		return nil
	}
	return errors.Join(w.file.Truncate(size+int64(step)), w.file.Sync())
}
