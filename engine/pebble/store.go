package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A Store keeps claims, state and journal in a directory. It implements storage.Store.
type Store struct {
	o    Options
	disk *disk
	lock io.Closer
	db   *pebble.DB

	fault   *fault
	id      storage.Identity
	lastSeq uint64

	applied    uint64        // the newest batch that was applied; Apply is called by one goroutine at a time
	durable    atomic.Uint64 // the newest batch that would survive a power cut
	unsynced   chan *commit  // in the order of the batches
	progress   chan struct{} // something became durable
	synced     chan struct{} // the same, for the goroutine that seals
	stop       chan struct{}
	background sync.WaitGroup

	unsealed   *unsealed
	seals      chan *table   // frozen tables, one at a time
	sealed     chan struct{} // closed when seals is closed and nothing is being sealed any more
	runOptions sstable.WriterOptions
	packed     []byte        // Apply's
	logged     atomic.Uint64 // bytes of batches since a seal had the memory table flushed

	// ingest is held while claims go from the journal into tables, and by what must not come in
	// between: a drop, a backup. It guards the fields below.
	ingest     sync.Mutex
	packedFrom uint64            // packed batches are kept from here on
	dropNotes  map[string]uint64 // what is under dropSpace

	attesting sync.Mutex  // held while an attestation is written
	raising   sync.Mutex  // held while the identity is written again
	raised    atomic.Bool // it has this build's format

	// maintenance is held by what trims the journal or writes sidecars, and by a backup while it
	// copies both.
	maintenance sync.Mutex
	trimmed     atomic.Uint64

	backingUp chan struct{} // has a value while a backup continues, from beginning to end: there is one stage

	spans dropped

	opening func() // a test's: called where an iterator is opened, if it is not nil
}

var _ storage.Store = (*Store)(nil)

// maxUnsynced is how many batches may wait for their sync before Apply waits for one.
const maxUnsynced = 1024

// Open opens the store in dir, and creates it if dir does not exist or is empty.
//
// It fails with storage.ErrLocked, storage.ErrForeign, storage.ErrNewerFormat or storage.ErrDamaged;
// then no byte of the store was changed.
func Open(dir string, o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	dir, err := prepareDir(o.FS, dir)
	if err != nil {
		return nil, err
	}
	d := newDisk(o.FS, dir, o.test)
	if err := d.refuseForeign(); err != nil {
		return nil, err
	}
	s := &Store{
		o:        o,
		disk:     d,
		fault:    d.fault,
		unsynced: make(chan *commit, maxUnsynced),
		progress: make(chan struct{}, 1),
		synced:   make(chan struct{}, 1),
		stop:     make(chan struct{}),
		unsealed: newUnsealed(o.PendingBytes),
		seals:    make(chan *table, 1),
		sealed:   make(chan struct{}),

		backingUp: make(chan struct{}, 1),
	}
	if s.lock, err = d.takeLock(); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	d.flushed = s.noteProgress
	s.background.Add(2)
	go s.sync()
	go s.attest()
	go s.seal()
	return s, nil
}

// open is Open under the lock. It leaves nothing open if it fails.
func (s *Store) open() (err error) {
	d := s.disk
	if s.id, err = sidecar.ReadIdentity(sidecars{d}, d.dir, sidecar.Pebble); errors.Is(err, fs.ErrNotExist) {
		if err := s.create(); err != nil {
			return err
		}
		s.id, err = sidecar.ReadIdentity(sidecars{d}, d.dir, sidecar.Pebble)
	}
	if err != nil {
		return err
	}
	clean, err := s.check()
	if err != nil {
		return err
	}
	if clean || s.o.test.ignoreCleanRecord {
		if err := d.removeSidecar(cleanName); err != nil {
			return err
		}
	}
	if _, err := d.Stat(d.path(creatingName)); err == nil {
		if err := d.removeSidecar(creatingName); err != nil {
			return err
		}
	}
	if err := s.removeLeftovers(); err != nil {
		return err
	}
	format, err := sidecar.ReadFormat(sidecars{d}, d.dir)
	if err != nil {
		return err
	}
	s.raised.Store(format == sidecar.Pebble.Format)
	if s.db, err = s.openPebble(false); err != nil {
		return err
	}
	if err = s.begin(); err == nil {
		err = s.loadPacked()
	}
	if err != nil {
		_ = s.fault.write(s.db.Close)
	}
	return err
}

// begin finds the last batch of the store, and attests it: all that Pebble recovered is in synced
// tables now.
func (s *Store) begin() error {
	var floor uint64
	err := s.fault.read(func() (err error) {
		s.lastSeq, floor, err = readSeqs(s.db)
		return err
	})
	if err != nil {
		return err
	}
	s.applied = s.lastSeq
	s.durable.Store(s.lastSeq)
	s.trimmed.Store(floor)
	return s.disk.writeAttestation(attestation{s.lastSeq, s.currentManifest()})
}

// currentManifest is what is durable of the MANIFEST, also where nothing was added to it since it
// was opened.
func (s *Store) currentManifest() position {
	if p := s.disk.durableManifest(); p.name != "" {
		return p
	}
	desc, err := pebble.Peek(s.disk.dir, s.disk)
	if err != nil || !desc.Exists {
		return position{}
	}
	data, err := readFile(s.disk, desc.ManifestFilename)
	if err != nil {
		return position{}
	}
	return position{s.disk.PathBase(desc.ManifestFilename), uint64(scanManifest(data).valid)}
}

// Identity implements storage.Store.
func (s *Store) Identity() storage.Identity { return s.id }

// LastSeq implements storage.Store.
func (s *Store) LastSeq() uint64 { return s.lastSeq }

// Close implements storage.Store. A poisoned store releases its directory, too.
func (s *Store) Close() error {
	close(s.unsynced)
	close(s.stop)
	var err error
	if s.fault.get() == nil {
		s.background.Wait()
		err = s.sealAll()
	}
	close(s.seals)
	if s.fault.get() == nil {
		<-s.sealed
	}
	if err == nil {
		err = s.closeClean()
	}
	if err != nil && s.fault.get() != nil {
		s.closePoisoned()
	}
	return errors.Join(err, s.release())
}

func (s *Store) closeClean() error {
	err := s.fault.write(func() error {
		if err := s.db.Close(); err != nil {
			return fmt.Errorf("hapax: closing the store: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.disk.writeAttestation(attestation{s.durable.Load(), s.currentManifest()}); err != nil {
		return err
	}
	return s.disk.writeClean(s.durable.Load())
}

// patience is how long Close waits for a failed disk or a failed Pebble to let go.
const patience = 10 * time.Second

// closePoisoned gives Pebble's memory back, if Pebble can still be closed. Nothing of that reaches
// the disk. Calls that were under way when the store failed have a second to return: Pebble's Close
// may not run concurrently with them.
func (s *Store) closePoisoned() {
	for waited := time.Duration(0); s.fault.running.Load() > 0 && waited < time.Second; waited += time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer func() { _ = recover() }()
		_ = s.db.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
	}
}

// release unlocks the directory, unless something is still being written to it.
func (s *Store) release() error {
	if s.fault.get() != nil && !s.disk.drain(patience) {
		return errors.New("hapax: the disk does not answer: the directory stays locked until the process ends")
	}
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("hapax: unlocking the store: %w", err)
	}
	return nil
}
