package pebble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/pebble/internal/memtable"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Reader is a storage.Reader of a store that no process has open. OpenReader returns one.
type Reader struct {
	core        core
	identity    identity
	reader      reader
	packedLog   packedLog
	claimReader claimReader
	journal     journal
	reclaimer   reclaimer
	meter       meter
	verifier    verifier

	memtable *memtable.Memtable
	closing  sync.Once
	closed   error // what Close has returned
}

var _ storage.Reader = (*Reader)(nil)

// OpenReader opens the store in dir for reading. It changes no byte and no file, so that the directory
// and the file system may be read-only and belong to another user. After a kill, it reads the log into
// memory, as Open does, and may find batches that are not on the disk yet and that a power cut would
// remove. Until Close, Open returns storage.ErrLocked; other readers may open the store meanwhile.
//
// OpenReader checks what Open checks. It fails with storage.ErrLocked if a Store is open,
// fs.ErrNotExist if there is no store, storage.ErrForeign, storage.ErrNewerFormat or
// storage.ErrDamaged. Options.FS must be nil.
func OpenReader(dir string, o Options) (*Reader, error) {
	if o.FS != nil {
		return nil, errors.New("hapax: a reader uses the machine's file system: leave Options.FS nil")
	}
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	held, err := storedir.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	d := heldFailStopFS(held)
	r := newReader(o, d)
	if err := r.open(); err != nil {
		r.core.recentRuns.Close()
		r.memtable.Abandon()
		return nil, errors.Join(err, d.release())
	}
	return r, nil
}

// newReader combines a reader's parts.
func newReader(o Options, d *failStopFS) *Reader {
	r := &Reader{
		core:     core{o: o, disk: d, fault: d.fault, startup: newStartup(), recentRuns: newIndex(&o, d)},
		memtable: memtable.New(o.PendingBytes),
	}
	c, m := &r.core, r.memtable
	r.identity.core = c
	r.reader.core = c
	r.packedLog.core, r.packedLog.memtable = c, m
	r.claimReader = claimReader{core: c, reader: &r.reader, cursors: &r.reader, memtable: m}
	r.journal.core, r.journal.reader = c, &r.reader
	r.reclaimer.core = c
	r.meter = meter{core: c, claimReader: &r.claimReader, reclaimer: &r.reclaimer, memtable: m}
	r.verifier = verifier{core: c, identity: &r.identity, reader: &r.reader, claimReader: &r.claimReader, journal: &r.journal}
	return r
}

func (r *Reader) open() (err error) {
	d := r.core.disk
	if err := d.takeLock(); err != nil {
		return err
	}
	if r.identity.id, err = sidecar.ReadIdentity(sidecarFS{d}, d.dir, r.core.o.kind()); err != nil {
		return fmt.Errorf("hapax: opening the store in %s: %w", d.dir, err)
	}
	if err := d.noteLogs(); err != nil {
		return err
	}
	d.seed = r.identity.id.Seed
	if _, _, err := check(&r.packedLog); err != nil {
		return err
	}
	r.memtable.Index()
	logs := newLogCheck(d)
	if r.core.db, err = r.core.openPebble(logs); err != nil {
		return cmp.Or(logs.wait(), err)
	}
	floor, err := readValue(r.core.fault, func() (uint64, error) {
		_, floor, err := readSeqs(r.core.db)
		return floor, err
	})
	r.journal.trimmed.Store(floor)
	if err := cmp.Or(logs.wait(), err); err != nil {
		return errors.Join(err, r.core.fault.write(r.core.db.Close))
	}
	return nil
}

// Identity implements storage.Reader.
func (r *Reader) Identity() storage.Identity { return r.identity.id }

// Claim implements storage.Reader.
func (r *Reader) Claim(key []byte) ([]byte, bool, error) { return r.claimReader.Claim(key) }

// Scan implements storage.Reader.
func (r *Reader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return r.claimReader.Scan(ctx, span, started, fn)
}

// Buckets implements storage.Reader.
func (r *Reader) Buckets(fn func(storage.Bucket) error) error { return r.claimReader.Buckets(fn) }

// State implements storage.Reader.
func (r *Reader) State(key []byte) ([]byte, bool, error) { return r.reader.State(key) }

// ScanState implements storage.Reader.
func (r *Reader) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return r.reader.ScanState(span, fn)
}

// Usage implements storage.Reader. Data that was dropped and not reclaimed does not count as
// reclaimable.
func (r *Reader) Usage() (storage.Usage, error) { return r.meter.Usage() }

// BucketBytes implements storage.Reader.
func (r *Reader) BucketBytes(b storage.Bucket) (uint64, error) { return r.meter.BucketBytes(b) }

// Verify implements storage.Reader. It checks what Store.Verify does.
func (r *Reader) Verify(ctx context.Context, report func(problem string)) error {
	return r.verifier.Verify(ctx, report)
}

// Close implements storage.Reader. A second Close returns the result of the first.
func (r *Reader) Close() error {
	r.closing.Do(func() {
		err := r.core.fault.write(r.core.db.Close)
		r.core.recentRuns.Close()
		r.memtable.Abandon()
		r.closed = errors.Join(err, r.core.disk.release())
	})
	return r.closed
}
