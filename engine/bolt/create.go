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

// survey reports whether dir is a store. If not, create must be able to make or complete one:
//
//	claims.bolt.new is written | renamed to claims.bolt | HAPAX is written
//
// The store is not visible as one before the last step. A claims.bolt without HAPAX is replaced
// only if it has no batch: a store whose HAPAX was lost is not mistaken for a new one. survey
// changes nothing.
func survey(dir string) (exists bool, err error) {
	_, err = sidecar.ReadIdentity(sidecar.OS{}, dir, sidecar.Bolt)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("hapax: looking at the store's directory: %w", err)
	}
	for _, e := range entries {
		switch name := e.Name(); name {
		case lockName, newFileName, sidecar.IdentityName + ".tmp":
		case "lost+found": // the directory may be the root of a file system
		case fileName:
			if err := unused(filepath.Join(dir, fileName)); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("%w: %s has no %s, but %s: give an empty directory", storage.ErrForeign, dir, sidecar.IdentityName, name)
		}
	}
	return false, nil
}

// unused returns an error unless the file is one that create has just made.
func unused(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("hapax: opening the store: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	c := core{file: f}
	tx, newest, err := c.newestTx()
	if err == nil {
		err = tx.check(context.Background(), newest.freelist, errFirst)
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
		return damaged("%s is missing, but there are %d batches", sidecar.IdentityName, h.seq)
	}
	return nil
}

// create makes a new store in dir.
func create(dir string, o Options) error {
	id := storage.NewIdentity()
	path := filepath.Join(dir, newFileName)
	if err := errors.Join(removeIfThere(path), removeIfThere(filepath.Join(dir, cleanName))); err != nil {
		return err
	}
	err := build(path, o, id, 0, func(*builder) error { return nil })
	if err == nil {
		err = install(dir, newFileName)
	}
	if err == nil {
		err = sidecar.WriteIdentity(sidecar.OS{}, dir, sidecar.Bolt, id)
	}
	if err != nil {
		return fmt.Errorf("hapax: creating the store: %w", err)
	}
	return nil
}

// install gives a complete file its name, durably.
func install(dir, name string) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(dir, fileName)); err != nil {
		return err
	}
	return sidecar.OS{}.SyncDir(dir)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hapax: %w", err)
	}
	return nil
}
