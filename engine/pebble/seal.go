package pebble

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A sealer freezes and seals tables.
//
// Sealing moves the claims of a frozen table to their permanent tables. In this order:
//
//  1. wait until its newest batch is durable: a table of Pebble survives a crash at once, the log
//     only up to its last sync, and the state after a crash must be a prefix of the batches;
//  2. write its claims, sorted, removals as tombstones, to tables of their own (runs), and ingest
//     these in one step: they become newer than all data in Pebble;
//  3. attest the MANIFEST, which alone refers to them;
//  4. remove the packed batches from the journal, with the notes of the drops that the run
//     contains;
//  5. remove the frozen table.
//
// After a crash before 4 is durable, the journal is complete: the claims are in memory again, where
// they take precedence over the run with the same claims, and are sealed once more. The journal is
// removed only from its beginning, so a value of a key in it is never older than that of a run.
//
// From 2 to 5, ingest is held, so that a Drop comes before all of it, and then the run does not
// contain the dropped claims, or after it, and then its range delete is newer than the run.
type sealer struct {
	core      *core
	reader    *reader
	attester  *attester
	packedLog *packedLog
	memtable  *memtable.Memtable
	seals     chan *memtable.Table // frozen tables, one at a time
	sealed    chan struct{}        // closed when seals is closed and nothing is being sealed any more
	synced    chan struct{}        // a batch became durable, for seal
	files     runFiles
	isDropped func(memtable.Moment) bool // that of the memtable; tests replace it
	logged    atomic.Uint64              // bytes of batches since a seal last flushed the memtable
}

// flushPart is the part of a memtable that must be used for a flush after a seal: the rest is for
// later batches.
const flushPart = 3

// seal seals frozen tables until seals is closed.
func (s *sealer) seal() {
	defer close(s.sealed)
	select {
	case <-s.core.startup.over:
	case <-s.core.fault.failed:
	}
	for t := range s.seals {
		if err := s.sealTable(t); err != nil {
			s.core.fault.set(fmt.Errorf("sealing claims in a table: %w", err))
			return
		}
	}
}

func (s *sealer) sealTable(t *memtable.Table) error {
	if err := s.awaitDurable(t.Last()); err != nil {
		return err
	}
	claims := s.memtable.Moment(t)
	paths, err := s.files.write(claims)
	if err != nil {
		return err
	}
	s.packedLog.ingest.Lock()
	defer s.packedLog.ingest.Unlock()
	if s.isDropped(claims) {
		// A bucket was dropped meanwhile. Repeat, while no other bucket can be dropped.
		if err := s.files.remove(paths); err != nil {
			return err
		}
		if paths, err = s.files.write(s.memtable.Moment(t)); err != nil {
			return err
		}
	}
	if err := s.ingestRun(t, paths); err != nil {
		return err
	}
	if err := s.attester.attestNow(); err != nil {
		return err
	}
	if err := s.packedLog.forgetPacked(t.Last()); err != nil {
		return err
	}
	s.memtable.Sealed()
	return s.flushSoon()
}

// ingestRun makes the claims of a frozen table, which are in files, Pebble's.
func (s *sealer) ingestRun(t *memtable.Table, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	err := asRead(s.core.fault.write(func() error { return s.core.db.Ingest(context.Background(), paths) }))
	if !errors.As(err, new(*storage.DamageError)) {
		return err
	}
	if err := s.files.put(s.memtable.Moment(t)); err != nil {
		return err
	}
	s.core.recentRuns.Lose()
	return s.files.remove(paths)
}

// flushSoon flushes Pebble's memtable in the background, if that is useful. Right after a seal,
// most of its contents are removed packed batches, which are not written. It also bounds the log
// that is read after a kill.
func (s *sealer) flushSoon() error {
	if s.logged.Load() < s.core.o.MemTableBytes/flushPart {
		return nil
	}
	s.logged.Store(0)
	return s.core.fault.write(func() error {
		_, err := s.core.db.AsyncFlush()
		return err
	})
}

// awaitDurable waits until a batch would survive a power failure.
func (s *sealer) awaitDurable(seq uint64) error {
	if err := s.attester.syncCopy(seq); err != nil {
		return err
	}
	for s.attester.durable.Load() < seq {
		select {
		case <-s.synced:
		case <-s.core.fault.failed:
			return s.core.fault.get()
		}
	}
	return nil
}

// makeRoom freezes the active table, once the previous one is sealed. It runs in Apply, or instead
// of it.
func (s *sealer) makeRoom() error {
	s.core.startup.end()
	if t := s.memtable.Frozen(); t != nil {
		select {
		case <-t.Done():
		case <-s.core.fault.failed:
			return s.core.fault.get()
		}
	}
	s.freeze()
	return nil
}

// freeze freezes the active table unless one is being sealed.
func (s *sealer) freeze() {
	if t := s.memtable.Freeze(); t != nil {
		s.seals <- t // has the capacity of the current one
	}
}

// sealAll moves all applied claims into tables. No Apply is in progress.
func (s *sealer) sealAll() error {
	for range 2 { // the active table, after the one that may be frozen
		if err := s.makeRoom(); err != nil {
			return err
		}
	}
	return nil
}
