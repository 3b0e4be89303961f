package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// backups makes backups of the store.
type backups struct {
	*core
	*identity
}

// Backup copies the store, as of the time of the call, to dir. The copy has no free pages and full
// ones: it is the smallest form of the store. All data is checked during the copy, and the copy has
// a record of a clean close. Sidecars are not copied, because the engine can make them again from
// the data. An interrupted backup leaves nothing that is mistaken for a store.
func (b *backups) Backup(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir) // the path that PrepareDir checks, also after os.Chdir
	if err != nil {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("hapax: backup: %s: %w", dir, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	if err := b.backupTo(ctx, dir); err != nil {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	return nil
}

// backupTo is Backup to a path at which nothing existed a moment ago. Files of another backup there
// are not removed.
func (b *backups) backupTo(ctx context.Context, dir string) (err error) {
	if err := sidecar.PrepareDir(dir); err != nil {
		return err
	}
	lock, err := sidecar.Lock(dir, lockName, b.o.LockTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if entries, err := os.ReadDir(dir); err != nil {
		return err
	} else if len(entries) > 1 { // one of them is the lock
		return fmt.Errorf("%s: %w", dir, fs.ErrExist)
	}
	defer func() {
		if err != nil {
			removeCopy(dir)
		}
	}()

	id := b.id.Backup()
	path := filepath.Join(dir, copyFileName)
	if err := b.view(func(tx *readTx) error { return tx.copyTo(ctx, path, b.o, id) }); err != nil {
		return err
	}
	if err := attestCopy(dir, path, id); err != nil {
		return err
	}
	if err := install(dir, copyFileName); err != nil {
		return err
	}
	return sidecar.WriteIdentity(sidecar.OS{}, dir, sidecar.Bolt, id)
}

// removeCopy removes the files of Backup, as far as it can, and no others.
func removeCopy(dir string) {
	for _, name := range []string{sidecar.IdentityName, sidecar.IdentityName + ".tmp", fileName, copyFileName, cleanName, cleanName + ".tmp", lockName} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	_ = os.Remove(dir)
}

// copyTo writes the contents of a readTx to a new file.
func (tx *readTx) copyTo(ctx context.Context, path string, o Options, id storage.Identity) error {
	h, err := tx.head()
	if err != nil {
		return err
	}
	o.openFile = nil
	return build(path, o, id, h.seq, func(b *builder) error {
		err := tx.scan(ctx, storage.Span{}, func(prefix []byte, c *cursor) error {
			return b.put([][]byte{claimsDir, prefix}, string(sumKey(claimSpace, prefix)), c.key(), c.value(), c.entry())
		})
		if err == nil {
			err = tx.copyDir(ctx, b, stateDir, stateSpace)
		}
		if err == nil {
			err = tx.copyDir(ctx, b, journalDir, journalSpace)
		}
		return err
	})
}

func (tx *readTx) copyDir(ctx context.Context, b *builder, dir []byte, space byte) error {
	t, err := tx.dir(dir)
	if err != nil {
		return err
	}
	name := sumKey(space, nil)
	err = t.each(nil, func(c *cursor) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return b.put([][]byte{dir}, string(name), c.key(), c.value(), c.entry())
	})
	if err != nil {
		return err
	}
	want, _, err := tx.sum(name)
	if err == nil && *b.sums[string(name)] != want {
		err = damaged("bucket %s does not contain the %d entries that were written", dir, want.count)
	}
	return err
}

// attestCopy writes the record of a clean close for the file at path.
func attestCopy(dir, path string, id storage.Identity) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	c := core{file: f, dir: dir}
	tx, _, err := c.newestTx()
	if err != nil {
		return err
	}
	h, err := tx.head()
	if err != nil {
		return err
	}
	return writeClean(sidecar.OS{}, dir, f, id, h.seq, tx.txid)
}
