package storedir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// OpenFile opens a file for reading or writing. With os.O_CREATE, it creates the file with mode
// 0600. It does not follow symbolic links, and returns storage.ErrForeign if the file is not a
// regular file.
func (d *Dir) OpenFile(name string, flag int) (*os.File, error) {
	if d.readOnly && flag != os.O_RDONLY {
		return nil, errReadOnly
	}
	was, err := d.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0:
		if err := d.Check(); err != nil {
			return nil, err
		}
		return d.root.OpenFile(name, flag|os.O_EXCL, 0o600)
	case err != nil:
		return nil, err
	case !was.Mode().IsRegular():
		return nil, notRegular(d.path, name)
	}
	f, err := d.root.OpenFile(name, flag&^(os.O_CREATE|os.O_TRUNC), 0)
	if err != nil {
		return nil, err
	}
	if is, err := f.Stat(); err != nil || !is.Mode().IsRegular() { // the file was replaced meanwhile
		return nil, errors.Join(err, notRegular(d.path, name), f.Close())
	}
	if flag&os.O_TRUNC != 0 {
		if err := f.Truncate(0); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

func notRegular(dir, name string) error {
	return fmt.Errorf("%w: %s in %s is not a regular file: remove it, it is not the store's", storage.ErrForeign, name, dir)
}

// Create creates a file with mode 0600. It first removes an existing file or link with that name.
func (d *Dir) Create(name string) (*os.File, error) {
	if err := changeable(d); err != nil {
		return nil, err
	}
	for {
		f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
		if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// ReadFile returns the content of a file.
func (d *Dir) ReadFile(name string) ([]byte, error) {
	f, err := d.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(f)
}

// Rename renames a file and replaces an existing file with the new name.
func (d *Dir) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayChange(); err != nil {
		return err
	}
	if err := d.root.Rename(from, to); err != nil {
		return err
	}
	return d.renamed(from, to)
}

// Link gives a file a second name, without replacing another file.
func (d *Dir) Link(from, to string) error {
	if err := changeable(d); err != nil {
		return err
	}
	return d.root.Link(from, to)
}

// LinkTo gives a file a second name in another directory.
func (d *Dir) LinkTo(from string, other *Dir, to string) error {
	if err := errors.Join(d.Check(), changeable(other)); err != nil {
		return err
	}
	if err := os.Link(filepath.Join(d.path, from), filepath.Join(other.path, to)); err != nil {
		return err
	}
	was, err := d.root.Lstat(from)
	if err != nil {
		return err
	}
	if is, err := other.root.Lstat(to); err != nil || !os.SameFile(was, is) {
		return errors.Join(displaced(to+" in "+other.path, err), err)
	}
	return nil
}

// Remove removes a file or an empty directory.
func (d *Dir) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayChange(); err != nil {
		return err
	}
	err := d.root.Remove(name)
	if err == nil {
		delete(d.names, name)
	}
	return err
}

// RemoveAll removes a directory with all its contents. It is not an error if the directory does not
// exist.
func (d *Dir) RemoveAll(name string) error {
	if err := changeable(d); err != nil {
		return err
	}
	return d.root.RemoveAll(name)
}

// Mkdir makes a directory with mode 0700.
func (d *Dir) Mkdir(name string) error {
	if err := changeable(d); err != nil {
		return err
	}
	return d.root.Mkdir(name, 0o700)
}

// Lstat describes a file, or the link itself.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) { return d.root.Lstat(name) }

// List returns the names of all files in a directory, which is "." or inside d.
func (d *Dir) List(name string) ([]string, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return f.Readdirnames(-1)
}

// OpenDir opens d, or a directory inside it, to be synced.
func (d *Dir) OpenDir(name string) (*os.File, error) { return d.root.Open(name) }

// Protect sets the mode 0600 on the files for which ours returns true if their mode is wider, for
// example after a copy. It ignores errors.
func (d *Dir) Protect(ours func(name string) bool) {
	if d.readOnly {
		return
	}
	names, err := d.List(".")
	if err != nil {
		return
	}
	for _, name := range names {
		info, err := d.root.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 == 0 || !ours(name) {
			continue
		}
		if f, err := d.OpenFile(name, os.O_RDONLY); err == nil {
			_ = f.Chmod(0o600)
			_ = f.Close()
		}
	}
}

// FS returns the directory as a sidecar.FS, whose paths are the paths of the directory's files.
func (d *Dir) FS() sidecar.FS { return dirFS{d} }

type dirFS struct{ d *Dir }

// name returns the name of a file from its path.
func (f dirFS) name(path string) (string, error) {
	if filepath.Dir(path) != f.d.path {
		return "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
	}
	return filepath.Base(path), nil
}

func (f dirFS) Create(path string) (sidecar.File, error) {
	name, err := f.name(path)
	if err != nil {
		return nil, err
	}
	return f.d.Create(name)
}

func (f dirFS) ReadFile(path string) ([]byte, error) {
	name, err := f.name(path)
	if err != nil {
		return nil, err
	}
	return f.d.ReadFile(name)
}

func (f dirFS) Open(path string) (io.ReadCloser, int64, error) {
	name, err := f.name(path)
	if err != nil {
		return nil, 0, err
	}
	file, err := f.d.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

func (f dirFS) Rename(from, to string) error {
	fromName, err := f.name(from)
	if err != nil {
		return err
	}
	toName, err := f.name(to)
	if err != nil {
		return err
	}
	return f.d.Rename(fromName, toName)
}

func (f dirFS) Remove(path string) error {
	name, err := f.name(path)
	if err != nil {
		return err
	}
	return f.d.Remove(name)
}

// SyncDir makes the entries of the directory durable.
func (f dirFS) SyncDir(path string) error {
	if path != f.d.path {
		return &fs.PathError{Op: "sync", Path: path, Err: fs.ErrInvalid}
	}
	return f.d.Sync()
}
