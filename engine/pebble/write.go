package pebble

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// maxUnsynced is how many batches may wait for their sync before Apply waits for one.
const maxUnsynced = 1024

// manyClaims is the number of claims for which adding them to a table takes longer than switching
// goroutines.
const manyClaims = 64

// A commit is a batch that is being written.
type commit struct {
	seq   uint64
	batch *pebble.Batch
	done  chan error // capacity 1
}

// A writer applies batches.
type writer struct {
	core     *core
	identity *identity
	attester *attester
	sealer   *sealer
	memtable *memtable.Memtable
	applied  uint64       // newest applied batch; only one goroutine at a time calls Apply
	unsynced chan *commit // in order
	packed   []byte       // used by Apply
}

func (w *writer) Apply(b *storage.Batch) (wait func() error, err error) {
	if err := w.core.fault.get(); err != nil {
		return nil, err
	}
	if b.Seq != w.applied+1 {
		return nil, fmt.Errorf("hapax: batch %d applied after batch %d", b.Seq, w.applied)
	}
	if err := w.identity.raiseFormat(); err != nil {
		return nil, err
	}
	if err := w.core.disk.reserve.admit(b); err != nil {
		return nil, err
	}
	if w.memtable.IsFull() {
		if err := w.sealer.makeRoom(); err != nil {
			return nil, err
		}
	}
	c := &commit{seq: b.Seq, batch: w.pack(b), done: make(chan error, 1)}
	if err := w.core.fault.write(func() error { return w.log(c.batch) }); err != nil {
		w.core.fault.set(err) // it is unknown whether the batch is visible or durable
		return nil, w.core.fault.get()
	}
	if len(b.Claims) >= manyClaims {
		runtime.Gosched() // let Pebble's goroutine write the log while the claims are added to the table
	}
	w.applied = b.Seq
	w.sealer.logged.Add(uint64(c.batch.Len()))
	w.memtable.Apply(b.Seq, b.Claims)
	if w.core.o.copy != nil {
		w.appliedToCopy(c)
		return func() error { return nil }, nil
	}
	select {
	case w.unsynced <- c:
	case <-w.core.fault.failed:
		return nil, w.core.fault.get()
	}
	if w.memtable.IsFull() {
		w.sealer.freeze()
	}
	return func() error { return w.await(c) }, nil
}

// log writes a batch to the log, and applies it.
func (w *writer) log(b *pebble.Batch) error {
	if w.core.o.copy != nil {
		return w.core.db.Apply(b, pebble.NoSync)
	}
	return w.core.db.ApplyNoSyncWait(b, pebble.Sync)
}

// appliedToCopy does what remains after a batch was applied to a copy, for which nothing waits.
func (w *writer) appliedToCopy(c *commit) {
	_ = c.batch.Close()
	w.attester.unsynced.Store(c.seq)
	w.core.startup.end()
	if w.memtable.IsFull() {
		w.sealer.freeze()
	}
}

func (w *writer) await(c *commit) error {
	select {
	case err := <-c.done:
		return err
	case <-w.core.fault.failed:
	}
	select {
	case err := <-c.done: // the batch was durable before the store failed, or caused the failure
		return err
	default:
		return w.core.fault.get()
	}
}

// sync waits for each batch in order, until unsynced is closed.
func (w *writer) sync() {
	for c := range w.unsynced {
		err := c.batch.SyncWait()
		if err != nil {
			w.core.fault.set(fmt.Errorf("syncing the log: %w", err))
		}
		// After a failure, the failStopFS discards writes and Pebble reports success, but the fault is
		// already set.
		if err := w.core.fault.get(); err != nil {
			c.done <- err
			continue
		}
		w.attester.durable.Store(c.seq)
		select {
		case w.sealer.synced <- struct{}{}:
		default:
		}
		c.done <- nil
		w.core.startup.end()
		_ = c.batch.Close()
		w.attester.noteProgress()
	}
}

// pack returns the batch for Pebble.
func (w *writer) pack(b *storage.Batch) *pebble.Batch {
	w.packed = memtable.AppendPacked(w.packed[:0], b.Claims)
	size := 96 + durabilitySize + len(b.Journal) + len(w.packed)
	for i := range b.State {
		size += 8 + len(b.State[i].Key) + len(b.State[i].Value)
	}
	p := w.core.db.NewBatchWithSize(size)
	var seq [seqSize]byte
	binary.BigEndian.PutUint64(seq[:], b.Seq)
	must(p.LogData(appendDurability(nil, b.Seq, w.attester.durable.Load()), nil))
	must(p.Set([]byte{lastSeqKey}, seq[:], nil))
	put(p, journalSpace, seq[:], b.Journal)
	if len(b.Claims) > 0 {
		put(p, packedSpace, seq[:], w.packed)
	}
	for i := range b.State {
		if w := &b.State[i]; w.Value == nil {
			remove(p, stateSpace, w.Key)
		} else {
			put(p, stateSpace, w.Key, w.Value)
		}
	}
	return p
}
