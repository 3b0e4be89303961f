package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A Reader is a storage.Reader of a store that no process has open. OpenReader returns one.
type Reader struct {
	core        core
	identity    identity
	reader      reader
	claimReader claimReader
	meter       meter
	verifier    verifier
}

var _ storage.Reader = (*Reader)(nil)

// OpenReader opens the store in dir for reading. It changes no byte and no file, so that the directory
// and the file system may be read-only and belong to another user. Until Close, Open returns
// storage.ErrLocked; other readers may open the store meanwhile.
//
// Unlike Open, it does not read the whole file: a damaged page causes storage.ErrDamaged when it is
// read, and Verify lists all of them. After a kill, it may read batches that are not on the disk yet
// and that a power cut would remove.
//
// The error wraps storage.ErrLocked if a Store is open, fs.ErrNotExist if there is no store,
// storage.ErrForeign if it is not a store of this package, storage.ErrNewerFormat, or
// storage.ErrDamaged. Of the options, only LockTimeout is used.
func OpenReader(dir string, o Options) (*Reader, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d, err := storedir.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	r := &Reader{core: core{dir: d, o: o}}
	c := &r.core
	r.identity.core = c
	r.reader = reader{c}
	r.claimReader = claimReader{c}
	r.meter = meter{c}
	r.verifier = verifier{core: c, identity: &r.identity}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return r, nil
}

func (r *Reader) open() (err error) {
	c := &r.core
	if err := c.dir.Lock(c.o.LockTimeout); err != nil {
		return err
	}
	if r.identity.id, err = sidecar.ReadIdentity(c.dir.FS(), c.dir.Path(), c.o.kind()); err != nil {
		return fmt.Errorf("hapax: opening the store in %s: %w", c.dir.Path(), err)
	}
	if c.file, err = c.dir.OpenFile(fileName, os.O_RDONLY); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return pages.Damaged("it is missing")
		}
		return fmt.Errorf("hapax: opening the store: %w", err)
	}
	record, closed, err := readClean(c.dir)
	if err != nil {
		return err
	}
	tx, _, h, err := c.newestOf(r.identity.id)
	if err != nil {
		return err
	}
	if closed && (record.seq != h.seq || record.txid != h.txid) {
		return pages.Damaged("%s is of batch %d, the file of batch %d", cleanName, record.seq, h.seq)
	}
	c.fixed = tx
	c.txid.Store(tx.pages.ID)
	return nil
}

// Identity implements storage.Reader.
func (r *Reader) Identity() storage.Identity { return r.identity.id }

// Claim implements storage.Reader.
func (r *Reader) Claim(key []byte) (record []byte, found bool, err error) {
	return r.claimReader.Claim(key)
}

// Scan implements storage.Reader.
func (r *Reader) Scan(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
	return r.claimReader.Scan(ctx, span, started, fn)
}

// Buckets implements storage.Reader.
func (r *Reader) Buckets(fn func(storage.Bucket) error) error { return r.claimReader.Buckets(fn) }

// State implements storage.Reader.
func (r *Reader) State(key []byte) (value []byte, found bool, err error) { return r.reader.State(key) }

// ScanState implements storage.Reader.
func (r *Reader) ScanState(span storage.Span, fn func(key, value []byte) error) error {
	return r.reader.ScanState(span, fn)
}

// Usage implements storage.Reader.
func (r *Reader) Usage() (storage.Usage, error) { return r.meter.Usage() }

// BucketBytes implements storage.Reader.
func (r *Reader) BucketBytes(b storage.Bucket) (uint64, error) { return r.meter.BucketBytes(b) }

// Verify implements storage.Reader.
func (r *Reader) Verify(ctx context.Context, report func(problem string)) error {
	return r.verifier.Verify(ctx, report)
}

// Close implements storage.Reader. A second Close returns an error.
func (r *Reader) Close() error { return r.core.release() }
