package pebble

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A Store stores claims, state and journal in a directory. It implements storage.Store.
type Store struct {
	// Each part refers to the parts that it needs, and to none that needs it.
	oneEngine   storage.OneEngine
	core        core
	identity    identity
	reader      reader
	attester    attester
	packedLog   packedLog
	claimReader claimReader
	journal     journal
	sealer      sealer
	writer      writer
	sidecars    sidecars
	reclaimer   reclaimer
	compactor   compactor
	dropper     dropper
	meter       meter
	verifier    verifier
	backups     backups

	memtable   *memtable.Memtable
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
	d, err := openFailStopFS(o.FS, dir)
	if err != nil {
		return nil, err
	}
	if err := refuseForeign(d, o.kind()); err != nil {
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
	d.reserve.forgetLogs(s.core.liveLogs)
	d.reserve.begin(o.Logger)
	if d.held != nil {
		d.held.Watch(d.fault.set)
	}
	d.flushed = func() {
		s.attester.noteProgress()
		s.compactor.noteFlush()
	}
	if t := s.memtable.Frozen(); t != nil {
		s.sealer.seals <- t
	}
	s.background.Go(func() { s.core.startup.await(s.core.o.startupTime, s.attester.stop) })
	s.background.Go(s.writer.sync)
	s.background.Go(s.attester.attest)
	s.background.Go(func() { s.compactor.compactFlushed(s.attester.stop) })
	s.background.Go(func() { s.compactor.compactRuns(s.attester.stop) })
	s.background.Go(func() { s.core.mirror(s.attester.stop) })
	s.background.Go(func() { s.core.forgetLogs(s.attester.stop) })
	s.background.Go(func() { d.damages.report(o.Logger, s.attester.stop) })
	go s.sealer.seal()
	return s, nil
}

// abandon frees the memory of a store that cannot be opened. If the disk has failed, a call that hangs
// may still use the tables.
func (s *Store) abandon() {
	s.core.recentRuns.Close()
	if s.core.fault.get() == nil {
		s.memtable.Abandon()
	}
}

// newStore combines a store's parts. None of them is used before the store is open.
func newStore(o Options, d *failStopFS) *Store {
	s := &Store{
		core:     core{o: o, disk: d, fault: d.fault, startup: newStartup(), recentRuns: newIndex(&o, d)},
		memtable: memtable.New(o.PendingBytes),
	}
	c, m := &s.core, s.memtable
	s.identity.core = c
	s.reader.core = c
	s.attester = attester{core: c, progress: make(chan struct{}, 1), stop: make(chan struct{})}
	s.packedLog.core, s.packedLog.memtable = c, m
	s.claimReader = claimReader{core: c, reader: &s.reader, cursors: &s.reader, memtable: m}
	s.journal.core, s.journal.reader = c, &s.reader
	s.sealer = sealer{
		core: c, reader: &s.reader, attester: &s.attester, packedLog: &s.packedLog, memtable: m,
		seals:  make(chan *memtable.Table, 1),
		sealed: make(chan struct{}),
		synced: make(chan struct{}, 1),
		files:  runFiles{core: c, options: runOptions(o.pebbleOptions(d))},

		isDropped: m.IsDropped,
	}
	s.writer = writer{
		core: c, identity: &s.identity, attester: &s.attester, sealer: &s.sealer, memtable: m,
		unsynced: make(chan *commit, maxUnsynced),
	}
	s.sidecars = sidecars{c, &s.attester}
	s.reclaimer.core = c
	s.compactor = compactor{core: c, flushed: make(chan struct{}, 1), filled: make(chan struct{}, 1)}
	s.dropper = dropper{core: c, identity: &s.identity, packedLog: &s.packedLog, reclaimer: &s.reclaimer, memtable: m}
	s.meter = meter{core: c, claimReader: &s.claimReader, reclaimer: &s.reclaimer, memtable: m}
	s.verifier = verifier{core: c, identity: &s.identity, reader: &s.reader, claimReader: &s.claimReader, journal: &s.journal}
	s.backups = backups{core: c, identity: &s.identity, packedLog: &s.packedLog, backingUp: make(chan struct{}, 1)}
	return s
}

// open is Open under the lock. If it fails, it leaves nothing open.
func (s *Store) open() (err error) {
	d := s.core.disk
	if s.identity.id, err = sidecar.ReadIdentity(sidecarFS{d}, d.dir, s.core.o.kind()); errors.Is(err, fs.ErrNotExist) {
		if err := create(&s.core); err != nil {
			return err
		}
		s.identity.id, err = sidecar.ReadIdentity(sidecarFS{d}, d.dir, s.core.o.kind())
	}
	if err != nil {
		return err
	}
	if err := d.noteLogs(); err != nil {
		return err
	}
	d.protect(s.core.o.Logger)
	d.seed = s.identity.id.Seed
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
	s.identity.raised.Store(format == sidecar.Pebble.Format)
	if err := d.track(sidecar.IdentityName); err != nil {
		return err
	}
	if !clean {
		if err := s.core.recoverTight(); err != nil {
			return err
		}
	}
	indexed := make(chan struct{})
	go func() {
		defer close(indexed)
		s.memtable.Index()
	}()
	s.core.db, err = s.core.openPebble(nil)
	<-indexed
	if err != nil {
		return err
	}
	last, floor, err := s.core.begin()
	if err != nil {
		_ = s.core.fault.write(s.core.db.Close)
		if s.core.fault.get() != nil {
			s.core.closePoisoned()
		}
		return err
	}
	s.lastSeq, s.writer.applied = last, last
	s.attester.durable.Store(last)
	s.journal.trimmed.Store(floor)
	return nil
}

// removeLeftovers removes the files of an interrupted sealing, close or backup.
func removeLeftovers(d *failStopFS) error {
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

// Apply implements storage.Store.
func (s *Store) Apply(b *storage.Batch) (wait func() error, err error) {
	return s.writer.Apply(b)
}

// Identity implements storage.Store.
func (s *Store) Identity() storage.Identity {
	return s.identity.Identity()
}

// Claim implements storage.Store. A claim that is not in memory now was in tables before.
func (s *Store) Claim(key []byte) ([]byte, bool, error) {
	return s.claimReader.Claim(key)
}

// Scan implements storage.Store. It first sorts the claims in memory that the span selects.
func (s *Store) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return s.claimReader.Scan(ctx, span, started, fn)
}

// Buckets implements storage.Store. The first call seeks from bucket to bucket, later calls only the
// buckets of which claims were removed, unless a table is damaged.
func (s *Store) Buckets(fn func(storage.Bucket) error) error {
	return s.claimReader.Buckets(fn)
}

// State implements storage.Store.
func (s *Store) State(key []byte) ([]byte, bool, error) {
	return s.reader.State(key)
}

// ScanState implements storage.Store.
func (s *Store) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return s.reader.ScanState(span, fn)
}

// Journal implements storage.Store.
func (s *Store) Journal(from uint64, fn func(seq uint64, entry []byte) error) error {
	return s.journal.Journal(from, fn)
}

// TrimJournal implements storage.Store. It is one range delete, which the next sync of a batch makes
// durable.
func (s *Store) TrimJournal(below uint64) error {
	return s.journal.TrimJournal(below)
}

// Drop implements storage.Store.
func (s *Store) Drop(buckets []storage.Bucket) error {
	return s.dropper.Drop(buckets)
}

// Reclaim implements storage.Store.
func (s *Store) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	return s.reclaimer.Reclaim(ctx, buckets)
}

// ReclaimState implements storage.Store. It compacts the range down to the last level: no table
// then contains data that was removed or replaced before the call. A log that Pebble keeps for
// reuse contains its old bytes until it is overwritten, or the store is closed.
func (s *Store) ReclaimState(ctx context.Context, span storage.Span) error {
	return s.reclaimer.ReclaimState(ctx, span)
}

// ReadSidecar implements storage.Store.
func (s *Store) ReadSidecar(name string, read func(r io.Reader, size int64) error) error {
	return s.sidecars.ReadSidecar(name, read)
}

// WriteSidecar implements storage.Store.
func (s *Store) WriteSidecar(name string, write func(io.Writer) error) error {
	return s.sidecars.WriteSidecar(name, write)
}

// Usage implements storage.Store. Data that was dropped before the store was opened and not
// reclaimed counts as reclaimable only after Drop or Reclaim named it again.
func (s *Store) Usage() (u storage.Usage, err error) {
	return s.meter.Usage()
}

// BucketBytes implements storage.Store. Claims that are not in tables yet count with their bytes in
// the journal, and the remains of a dropped bucket in tables count as nothing. So does what is in a
// damaged table.
func (s *Store) BucketBytes(b storage.Bucket) (uint64, error) {
	return s.meter.BucketBytes(b)
}

// Verify implements storage.Store. It checks every block of every table on the disk, not in the
// cache, the logs, the MANIFEST and the small files, and then reads all claims, the state and the
// journal.
func (s *Store) Verify(ctx context.Context, report func(problem string)) error {
	return s.verifier.Verify(ctx, report)
}

// Backup implements storage.Store. Tables are copied, so that damage to the store is none to the
// backup, unless Options.LinkBackups is set. Without hard links, the tables are copied while nothing
// is sealed, and Apply waits when memory is full; the context ends that before the next table. The
// copy is opened and closed once, and only after that becomes a store: Open rejects the files of an
// interrupted backup. A backup that fails removes its own files, and the directory if nothing else
// is in it.
func (s *Store) Backup(ctx context.Context, dir string) error {
	return s.backups.Backup(ctx, dir)
}

// Acquire implements storage.Store.
func (s *Store) Acquire() error { return s.oneEngine.Acquire() }

// Release implements storage.Store.
func (s *Store) Release() { s.oneEngine.Release() }
