package pebble

import (
	"errors"
	"io/fs"
	"strings"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A Store stores claims, state and journal in a directory. It implements storage.Store.
type Store struct {
	// Each part refers to the parts that it needs, and to none that needs it. The exported methods
	// of embedded parts are methods of the Store.
	storage.OneEngine
	core
	identity
	reader
	attester
	packedLog
	claimReader
	journal
	sealer
	writer
	sidecars
	reclaimer
	compactor
	dropper
	meter
	verifier
	backups

	unsealed   *unsealed
	lastSeq    uint64
	background sync.WaitGroup
	closing    sync.Once
	closed     error // what Close has returned
}

var _ storage.Store = (*Store)(nil)

// Open opens the store in dir, and creates it if dir does not exist or is empty.
//
// It fails with storage.ErrLocked, storage.ErrForeign, storage.ErrNewerFormat or storage.ErrDamaged;
// then no byte of the store was changed.
func Open(dir string, o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	d, err := openDisk(o.FS, dir)
	if err != nil {
		return nil, err
	}
	if err := refuseForeign(d); err != nil {
		return nil, errors.Join(err, d.release())
	}
	s := newStore(o, d)
	if err := d.takeLock(); err != nil {
		s.abandon()
		return nil, errors.Join(err, d.release())
	}
	if err := s.open(); err != nil {
		s.abandon()
		again := sidecar.NoSpace(err) && d.reserve.giveUp()
		if err := errors.Join(err, d.release()); !again || d.stuck() != nil {
			return nil, err
		}
		return Open(dir, o)
	}
	d.reserve.begin()
	if d.held != nil {
		d.held.Watch(d.fault.set)
	}
	d.flushed = func() {
		s.noteProgress()
		s.noteFlush()
	}
	if t := s.unsealed.sealing(); t != nil {
		s.seals <- t
	}
	s.background.Go(func() { s.startup.await(s.o.startupTime, s.stop) })
	s.background.Go(s.sync)
	s.background.Go(s.attest)
	s.background.Go(func() { s.compactFlushed(s.stop) })
	s.background.Go(func() { s.compactRuns(s.stop) })
	s.background.Go(func() { s.mirror(s.stop) })
	go s.seal()
	return s, nil
}

// abandon frees the memory of a store that cannot be opened. If the disk has failed, a call that hangs
// may still use the tables.
func (s *Store) abandon() {
	s.recentRuns.close()
	if s.fault.get() == nil {
		s.unsealed.abandon()
	}
}

// newStore combines a store's parts. None of them is used before the store is open.
func newStore(o Options, d *disk) *Store {
	s := &Store{
		core:     core{o: o, disk: d, fault: d.fault, startup: newStartup(), recentRuns: newRunIndex(&o, d)},
		unsealed: newUnsealed(o.PendingBytes),
	}
	c, u := &s.core, s.unsealed
	s.identity.core = c
	s.reader.core = c
	s.attester = attester{core: c, progress: make(chan struct{}, 1), stop: make(chan struct{})}
	s.packedLog.core, s.packedLog.unsealed = c, u
	s.claimReader = claimReader{core: c, reader: &s.reader, cursors: &s.reader, unsealed: u}
	s.journal.core, s.journal.reader = c, &s.reader
	s.sealer = sealer{
		core: c, reader: &s.reader, attester: &s.attester, packedLog: &s.packedLog, unsealed: u,
		seals:  make(chan *table, 1),
		sealed: make(chan struct{}),
		synced: make(chan struct{}, 1),
		files:  runFiles{core: c, options: runOptions(o.pebbleOptions(d))},
	}
	s.writer = writer{
		core: c, identity: &s.identity, attester: &s.attester, sealer: &s.sealer, unsealed: u,
		unsynced: make(chan *commit, maxUnsynced),
	}
	s.sidecars = sidecars{c}
	s.reclaimer.core = c
	s.compactor = compactor{core: c, flushed: make(chan struct{}, 1), filled: make(chan struct{}, 1)}
	s.dropper = dropper{core: c, identity: &s.identity, packedLog: &s.packedLog, reclaimer: &s.reclaimer, unsealed: u}
	s.meter = meter{core: c, claimReader: &s.claimReader, reclaimer: &s.reclaimer, unsealed: u}
	s.verifier = verifier{core: c, identity: &s.identity, reader: &s.reader, claimReader: &s.claimReader, journal: &s.journal}
	s.backups = backups{core: c, identity: &s.identity, packedLog: &s.packedLog, backingUp: make(chan struct{}, 1)}
	return s
}

// open is Open under the lock. If it fails, it leaves nothing open.
func (s *Store) open() (err error) {
	d := s.disk
	if s.id, err = sidecar.ReadIdentity(sidecarFS{d}, d.dir, sidecar.Pebble); errors.Is(err, fs.ErrNotExist) {
		if err := create(&s.core); err != nil {
			return err
		}
		s.id, err = sidecar.ReadIdentity(sidecarFS{d}, d.dir, sidecar.Pebble)
	}
	if err != nil {
		return err
	}
	if err := d.noteLogs(); err != nil {
		return err
	}
	d.protect(s.o.Logger)
	d.seed = s.id.Seed
	clean, unused, err := check(&s.packedLog)
	if err != nil {
		return err
	}
	for _, name := range unused {
		if err := d.Remove(d.path(name)); err != nil {
			return err
		}
	}
	if clean {
		if err := removeSidecar(d, cleanName); err != nil {
			return err
		}
	}
	if _, err := d.Stat(d.path(creatingName)); err == nil {
		if err := removeSidecar(d, creatingName); err != nil {
			return err
		}
	}
	if err := removeLeftovers(d); err != nil {
		return err
	}
	format, err := sidecar.ReadFormat(sidecarFS{d}, d.dir)
	if err != nil {
		return err
	}
	s.raised.Store(format == sidecar.Pebble.Format)
	if err := d.track(sidecar.IdentityName); err != nil {
		return err
	}
	if !clean {
		if err := s.recoverTight(); err != nil {
			return err
		}
	}
	indexed := make(chan struct{})
	go func() {
		defer close(indexed)
		s.unsealed.index()
	}()
	s.db, err = s.openPebble(nil)
	<-indexed
	if err != nil {
		return err
	}
	last, floor, err := s.begin()
	if err != nil {
		_ = s.fault.write(s.db.Close)
		if s.fault.get() != nil {
			s.closePoisoned()
		}
		return err
	}
	s.lastSeq, s.applied = last, last
	s.durable.Store(last)
	s.trimmed.Store(floor)
	return nil
}

// removeLeftovers removes the files of an interrupted sealing, close or backup.
func removeLeftovers(d *disk) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if isRun(name) || isLog(strings.TrimSuffix(name, tmpSuffix)) && !isLog(name) || name == stageName {
			if err := d.RemoveAll(d.path(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// LastSeq implements storage.Store.
func (s *Store) LastSeq() uint64 { return s.lastSeq }
