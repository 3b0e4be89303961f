package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

type restoreCmd struct {
	Backup string `arg:"" help:"Directory of the backup, which stays as it is." type:"path"`
}

type restoreRow struct {
	Restored bool   `json:"restored"`
	Backup   string `json:"backup"`
	Store    string `json:"store"`
	Replaced string `json:"replaced"`
}

// Run implements the command. The backup is copied beside the store and then takes its place, so that the
// directory is the old store or the new one, whatever ends the command.
func (c *restoreCmd) Run(ctx context.Context, out *output, f *files) error {
	row := restoreRow{Backup: c.Backup, Store: f.dir}
	_, err := os.Lstat(f.dir)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if exists {
		if _, err := f.kind(); err != nil {
			return err
		}
		row.Replaced = f.dir + ".before-" + time.Now().UTC().Format("20060102T150405Z")
	}
	backup := files{dir: c.Backup}
	if !f.yes {
		if err := backup.read(func(*engine.Reader) error { return nil }); err != nil {
			return err
		}
		out.object(row)
		return errUnchanged
	}
	fresh := f.dir + ".restoring"
	err = backup.read(func(*engine.Reader) error { return copyFiles(ctx, c.Backup, fresh) })
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: another command restores, or has been killed: remove that directory then", err)
	}
	if err == nil {
		restored := files{dir: fresh}
		err = restored.read(func(*engine.Reader) error { return nil })
	}
	if err == nil && exists {
		err = f.replace(fresh, row.Replaced)
	} else if err == nil {
		err = os.Rename(fresh, f.dir)
	}
	if err != nil {
		return fmt.Errorf("restoring %s: %w", c.Backup, errors.Join(err, os.RemoveAll(fresh)))
	}
	if err := (sidecar.OS{}).SyncDir(filepath.Dir(f.dir)); err != nil {
		return err
	}
	row.Restored = true
	out.object(row)
	return nil
}

// replace puts another directory in the place of the store, which no process has open, and gives the
// store another name.
func (f *files) replace(fresh, old string) error {
	d, err := storedir.Open(f.dir)
	if err != nil {
		return err
	}
	if err := d.Lock(0); err != nil {
		return errors.Join(err, d.Close())
	}
	// Without the directory, an application would start with an empty store.
	if err = exchange(fresh, f.dir); err == nil {
		err = os.Rename(fresh, old)
	} else if errors.Is(err, errors.ErrUnsupported) {
		if err = os.Rename(f.dir, old); err == nil {
			err = os.Rename(fresh, f.dir)
		}
	}
	return errors.Join(err, d.Close())
}

// copyFiles copies the files of a store, which is being read, to a new directory, durably.
func copyFiles(ctx context.Context, from, to string) (err error) {
	d, err := storedir.Make(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !e.Type().IsRegular() || e.Name() == storedir.LockName {
			continue
		}
		if err := copyFile(d, filepath.Join(from, e.Name()), e.Name()); err != nil {
			return err
		}
	}
	return d.Sync()
}

func copyFile(d *storedir.Dir, from, name string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }() // it was only read
	dst, err := d.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}
