package pebble

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A commit is a batch on its way to the disk.
type commit struct {
	seq   uint64
	batch *pebble.Batch
	done  chan error // takes one
}

// Apply implements storage.Store.
func (s *Store) Apply(b *storage.Batch) (wait func() error, err error) {
	if err := s.fault.get(); err != nil {
		return nil, err
	}
	if b.Seq != s.applied+1 {
		return nil, fmt.Errorf("hapax: batch %d applied after batch %d", b.Seq, s.applied)
	}
	if err := s.raiseFormat(); err != nil {
		return nil, err
	}
	if s.unsealed.full() {
		if err := s.makeRoom(); err != nil {
			return nil, err
		}
	}
	c := &commit{seq: b.Seq, batch: s.pack(b), done: make(chan error, 1)}
	if err := s.fault.write(func() error { return s.db.ApplyNoSyncWait(c.batch, pebble.Sync) }); err != nil {
		s.fault.set(err) // visible or not, durable or not: unknown
		return nil, s.fault.get()
	}
	s.applied = b.Seq
	s.logged.Add(uint64(c.batch.Len()))
	s.unsealed.apply(b.Seq, b.Claims)
	select {
	case s.unsynced <- c:
	case <-s.fault.failed:
		return nil, s.fault.get()
	}
	if s.unsealed.full() {
		s.freeze()
	}
	if s.o.test.acknowledgeUnsynced {
		return func() error { return nil }, nil
	}
	return func() error { return s.await(c) }, nil
}

func (s *Store) await(c *commit) error {
	select {
	case err := <-c.done:
		return err
	case <-s.fault.failed:
	}
	select {
	case err := <-c.done: // it was durable before the store failed, or is what failed it
		return err
	default:
		return s.fault.get()
	}
}

// sync waits for the batches one after the other, until unsynced is closed.
func (s *Store) sync() {
	defer s.background.Done()
	for c := range s.unsynced {
		err := c.batch.SyncWait()
		if err != nil {
			s.fault.set(fmt.Errorf("syncing the log: %w", err))
		}
		// After a failure that the disk swallowed, Pebble reports success: the fault was set
		// before.
		if err := s.fault.get(); err != nil {
			c.done <- err
			continue
		}
		s.durable.Store(c.seq)
		select {
		case s.synced <- struct{}{}:
		default:
		}
		c.done <- nil
		_ = c.batch.Close()
		s.noteProgress()
	}
}

// pack makes one batch of Pebble's.
func (s *Store) pack(b *storage.Batch) *pebble.Batch {
	s.packed = appendPacked(s.packed[:0], b.Claims)
	size := 96 + promiseSize + len(b.Journal) + len(s.packed)
	for i := range b.State {
		size += 8 + len(b.State[i].Key) + len(b.State[i].Value)
	}
	p := s.db.NewBatchWithSize(size)
	var seq [seqSize]byte
	binary.BigEndian.PutUint64(seq[:], b.Seq)
	must(p.LogData(appendPromise(nil, b.Seq, s.durable.Load()), nil))
	must(p.Set([]byte{lastSeqKey}, seq[:], nil))
	put(p, journalSpace, seq[:], b.Journal)
	if len(b.Claims) > 0 {
		put(p, packedSpace, seq[:], s.packed)
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

// raiseFormat makes a store of an older format one of this build's, before the first thing that an
// older build would misread is written.
func (s *Store) raiseFormat() error {
	if s.raised.Load() {
		return nil
	}
	s.raising.Lock()
	defer s.raising.Unlock()
	if err := sidecar.WriteIdentity(sidecars{s.disk}, s.disk.dir, sidecar.Pebble, s.id); err != nil {
		return fmt.Errorf("hapax: raising the format of the store: %w", err)
	}
	if err := s.fault.get(); err != nil {
		return err
	}
	s.raised.Store(true)
	return nil
}

func put(p *pebble.Batch, space byte, key, value []byte) {
	op := p.SetDeferred(1+len(key), len(value))
	op.Key[0] = space
	copy(op.Key[1:], key)
	copy(op.Value, value)
	must(op.Finish())
}

func remove(p *pebble.Batch, space byte, key []byte) {
	op := p.DeleteDeferred(1 + len(key))
	op.Key[0] = space
	copy(op.Key[1:], key)
	must(op.Finish())
}

// must is for calls that build a batch in memory: they fail for indexed batches only.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TrimJournal implements storage.Store. It is one range delete, which the next sync of a batch makes
// durable.
func (s *Store) TrimJournal(below uint64) error {
	s.maintenance.Lock()
	defer s.maintenance.Unlock()
	from := s.trimmed.Load()
	if below <= max(from, 1) {
		return s.fault.get()
	}
	p := s.db.NewBatch()
	// Never from the first entry on: a tombstone that covers what earlier ones cover has to be
	// skipped by every read.
	must(p.DeleteRange(journalKey(from), journalKey(below), nil))
	must(p.Set([]byte{trimKey}, binary.BigEndian.AppendUint64(nil, below), nil))
	if err := s.fault.write(func() error { return s.db.Apply(p, pebble.NoSync) }); err != nil {
		return err
	}
	s.trimmed.Store(below)
	return nil
}

// Sidecars of the engine have a prefix, so that no name is one of Pebble's or ours.
const sidecarPrefix = "sidecar-"

func sidecarName(name string) (string, error) {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return "", fmt.Errorf("hapax: sidecar name %q: use a-z, 0-9 and '-'", name)
		}
	}
	if name == "" {
		return "", fmt.Errorf("hapax: sidecar without a name")
	}
	return sidecarPrefix + name, nil
}

// WriteSidecar implements storage.Store.
func (s *Store) WriteSidecar(name string, write func(io.Writer) error) error {
	file, err := sidecarName(name)
	if err != nil {
		return err
	}
	s.maintenance.Lock()
	defer s.maintenance.Unlock()
	if err := s.fault.get(); err != nil {
		return err
	}
	if err := sidecar.Write(sidecars{s.disk}, s.disk.dir, file, write); err != nil {
		return fmt.Errorf("hapax: writing sidecar %q: %w", name, err)
	}
	return s.fault.get()
}

// ReadSidecar implements storage.Store.
func (s *Store) ReadSidecar(name string) ([]byte, error) {
	file, err := sidecarName(name)
	if err != nil {
		return nil, err
	}
	b, err := readFile(s.disk, s.disk.path(file))
	if err != nil {
		return nil, fmt.Errorf("hapax: reading sidecar %q: %w", name, err)
	}
	return b, nil
}
