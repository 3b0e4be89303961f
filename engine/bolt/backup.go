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

// backups writes backups of the store.
type backups struct {
	core     *core
	identity *identity
}

func (b *backups) Backup(ctx context.Context, dir string) error {
	if b.core.dir.Contains(dir) {
		return fmt.Errorf("hapax: backup to %s: %w", dir, storedir.ErrInside)
	}
	d, err := storedir.Make(dir)
	if err != nil {
		return fmt.Errorf("hapax: backup: %w", err)
	}
	err = b.backupTo(ctx, d)
	if err != nil {
		removeCopy(d)
	}
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("hapax: backup to %s: %w", dir, err)
	}
	return nil
}

// backupTo is Backup to a directory that was just created.
func (b *backups) backupTo(ctx context.Context, dir *storedir.Dir) error {
	if err := dir.Lock(b.core.o.LockTimeout); err != nil {
		return err
	}
	id := b.identity.id.Backup()
	if err := b.core.view(func(tx *readTx) error { return tx.copyTo(ctx, dir, b.core.o, id) }); err != nil {
		return err
	}
	if err := attestCopy(dir, id); err != nil {
		return err
	}
	if err := install(dir, copyFileName); err != nil {
		return err
	}
	return sidecar.WriteIdentity(dir.FS(), dir.Path(), sidecar.Bolt, id)
}

// removeCopy removes the files that Backup has written, and no others. It ignores errors.
func removeCopy(dir *storedir.Dir) {
	dir.RemoveSelf(sidecar.IdentityName, sidecar.IdentityName+".tmp", fileName, copyFileName, cleanName, cleanName+".tmp")
}

// copyTo writes the contents of a readTx to a new file.
func (tx *readTx) copyTo(ctx context.Context, dir *storedir.Dir, o Options, id storage.Identity) error {
	h, err := tx.head()
	if err != nil {
		return err
	}
	o.opened = func(*os.File) {}
	return build(dir, copyFileName, o, id, h.seq, func(b *builder) error {
		err := tx.scan(ctx, storage.Span{}, func(prefix []byte, c *pages.Cursor) error {
			return b.put([][]byte{claimsDir, prefix}, string(sumKey(claimSpace, prefix)), c.Key(), c.Value(), c.Entry())
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
	err = t.Each(nil, func(c *pages.Cursor) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return b.put([][]byte{dir}, string(name), c.Key(), c.Value(), c.Entry())
	})
	if err != nil {
		return err
	}
	want, _, err := tx.sum(name)
	if err == nil && *b.sums[string(name)] != want {
		err = pages.Damaged("bucket %s does not contain the %d entries that were written", dir, want.count)
	}
	return err
}

// attestCopy writes the copy's record of a clean close.
func attestCopy(dir *storedir.Dir, id storage.Identity) error {
	f, err := dir.OpenFile(copyFileName, os.O_RDONLY)
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
	return writeClean(dir.FS(), dir.Path(), f, id, h.seq, tx.pages.ID)
}
