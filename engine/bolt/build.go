package bolt

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
	bbolt "go.etcd.io/bbolt"
)

// A builder writes a new file, an empty store or a backup, from sealed entries in key order. The
// file is not read before build has returned.
type builder struct {
	db      *bbolt.DB
	tx      *bbolt.Tx
	stuck   bool // bbolt has panicked and may still hold its lock
	pending int  // size of tx
	sums    map[string]*sum
}

// buildTxBytes is the size of one transaction of a builder.
const buildTxBytes = 4 << 20

// build writes a new file with the entries that fill puts. bbolt reads it through a mapping, so a
// failing disk may cause a memory fault, as with the store's own file.
func build(dir *storedir.Dir, name string, o Options, id storage.Identity, seq uint64, fill func(b *builder) error) error {
	b := &builder{sums: map[string]*sum{
		string(sumKey(stateSpace, nil)):   {},
		string(sumKey(journalSpace, nil)): {},
	}}
	err := guardAs(fmt.Errorf("hapax: writing %s in %s", name, dir.Path()), func() error {
		err := b.open(dir, name, o)
		if err == nil {
			err = fill(b)
		}
		if err == nil {
			err = b.finish(id, seq)
		}
		return err
	})
	if err != nil && b.db != nil && !b.stuck {
		if b.tx != nil {
			_ = b.tx.Rollback() // a failed Commit has ended it
		}
		err = errors.Join(err, b.db.Close())
	}
	return err
}

func (b *builder) open(dir *storedir.Dir, name string, o Options) (err error) {
	path := filepath.Join(dir.Path(), name)
	if b.db, err = bbolt.Open(path, 0o600, o.bbolt(dir)); err != nil {
		return fmt.Errorf("hapax: creating %s: %w", path, err)
	}
	b.db.AllocSize = minGrowStep
	if err := b.begin(); err != nil {
		return err
	}
	for _, name := range topDirs {
		if _, err := b.tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) begin() (err error) {
	b.stuck = true
	b.tx, err = b.db.Begin(true)
	b.stuck = false
	return err
}

// put adds an entry to the tree in the bucket dirs, and to the sum with the given name.
func (b *builder) put(dirs [][]byte, sumName string, key, value, entry []byte) error {
	if b.pending > buildTxBytes {
		if err := b.tx.Commit(); err != nil {
			return err
		}
		if err := b.begin(); err != nil {
			return err
		}
		b.db.AllocSize = growStep(b.tx.Size())
		b.pending = 0
	}
	bucket := b.tx.Bucket(dirs[0])
	for _, name := range dirs[1:] {
		var err error
		if bucket, err = bucket.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	bucket.FillPercent = fullPages
	if b.sums[sumName] == nil {
		b.sums[sumName] = new(sum)
	}
	b.sums[sumName].add(entry)
	b.pending += len(entry) + pages.ElementSize
	return bucket.Put(key, append([]byte(nil), value...))
}

// finish writes the sums and the head, then syncs and closes the file.
func (b *builder) finish(id storage.Identity, seq uint64) error {
	h := head{uuid: id.UUID, incarnation: id.Incarnation, seq: seq, txid: uint64(b.tx.ID())}
	sums := b.tx.Bucket(sumsDir)
	for name, s := range b.sums {
		if err := putSealed(sums, sumSpace, []byte(name), s.encode(), &h.sums); err != nil {
			return err
		}
	}
	if err := putSealed(b.tx.Bucket(metaDir), metaSpace, headKey, h.encode(), nil); err != nil {
		return err
	}
	if err := b.tx.Commit(); err != nil {
		return err
	}
	return b.db.Close()
}

// putSealed puts a small record with its checksum and adds the entry to s.
func putSealed(to *bbolt.Bucket, space byte, key, record []byte, s *sum) error {
	entry := pages.AppendEntry(make([]byte, 0, len(key)+len(record)+pages.SealSize), pages.Seed(space, nil), key, record)
	if s != nil {
		s.add(entry)
	}
	return to.Put(key, entry[len(key):])
}
