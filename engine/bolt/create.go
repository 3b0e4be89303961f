package bolt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hapax-dev/hapax/engine/bolt/internal/pages"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// survey reports whether dir is a store. If not, it returns an error unless create can make or
// complete one:
//
//	claims.bolt.new is written | renamed to claims.bolt | HAPAX is written
//
// The directory is a store only after the last step. A claims.bolt without HAPAX is replaced only
// if it has no batch, so that a store whose HAPAX was lost is not taken for a new one. survey
// changes nothing.
func survey(dir *storedir.Dir, kind sidecar.Kind) (exists bool, err error) {
	_, err = sidecar.ReadIdentity(dir.FS(), dir.Path(), kind)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	names, err := dir.List(".")
	if err != nil {
		return false, fmt.Errorf("hapax: looking at the store's directory: %w", err)
	}
	for _, name := range names {
		switch name {
		case storedir.LockName, newFileName, sidecar.IdentityName + ".tmp":
		case "lost+found": // the directory may be the root of a file system
		case fileName:
			if err := unused(dir); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("%w: %s has no %s, but %s: give an empty directory", storage.ErrForeign, dir.Path(), sidecar.IdentityName, name)
		}
	}
	return false, nil
}

// unused returns an error unless create has made the file and nothing was written to it since.
func unused(dir *storedir.Dir) error {
	f, err := dir.OpenFile(fileName, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("hapax: opening the store: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	c := core{file: f}
	tx, newest, err := c.newestTx()
	if err == nil {
		err = tx.check(context.Background(), newest.Freelist, errFirst)
	}
	var h head
	if err == nil {
		h, err = tx.head()
	}
	switch {
	case errors.Is(err, storage.ErrNewerFormat):
		return err
	case err != nil:
		return fmt.Errorf("%w: there is no %s next to it, and %w", storage.ErrForeign, sidecar.IdentityName, err)
	case h.seq != 0:
		return pages.Damaged("%s is missing, but there are %d batches", sidecar.IdentityName, h.seq)
	}
	return nil
}

// create creates a store in dir.
func create(dir *storedir.Dir, o Options) error {
	id, err := o.identity()
	if err != nil {
		return err
	}
	if err := errors.Join(removeIfThere(dir, newFileName), removeIfThere(dir, cleanName)); err != nil {
		return err
	}
	err = build(dir, newFileName, o, id, 0, func(*builder) error { return nil })
	if err == nil {
		err = install(dir, newFileName)
	}
	if err == nil {
		err = sidecar.WriteIdentity(dir.FS(), dir.Path(), o.kind(), id)
	}
	if err != nil {
		return fmt.Errorf("hapax: creating the store: %w", err)
	}
	return nil
}

// install durably renames a complete file to its final name.
func install(dir *storedir.Dir, name string) error {
	f, err := dir.OpenFile(name, os.O_RDWR)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := dir.Rename(name, fileName); err != nil {
		return err
	}
	return dir.Sync()
}

func removeIfThere(dir *storedir.Dir, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hapax: %w", err)
	}
	return nil
}
