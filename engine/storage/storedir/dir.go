package storedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
)

// A Dir is the directory of a store. Its methods take the names of files in it, not paths, and
// return *fs.PathError and *os.LinkError as package os does. They may be called concurrently.
type Dir struct {
	path     string // absolute, without symbolic links
	warnings []string
	root     *os.Root
	self     *os.File // the directory, for its lock
	lock     *os.File // the file LOCK; nil until Lock
	watch    watch

	mu      sync.Mutex // guards the fields below; held while names change
	names   map[string]fs.FileInfo
	own     fs.FileInfo
	checked time.Time
	moved   error // what check has found, once
}

// Open opens the directory at path, and makes a missing one, with mode 0700 and durably. It neither
// locks nor changes an existing one: call Lock before anything is written.
//
// It returns storage.ErrForeign for a symbolic link, for a directory that belongs to another user
// than root and that of this process, and for one that others may write to. A directory that a
// group of this process may write to is accepted, as are the volumes of Kubernetes: see Warnings.
func Open(path string) (*Dir, error) {
	path, err := prepare(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("hapax: opening the store's directory: %w", err)
	}
	d := &Dir{path: path, root: root, names: make(map[string]fs.FileInfo)}
	if err := begin(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func begin(d *Dir) (err error) {
	if d.self, err = d.root.Open("."); err != nil {
		return fmt.Errorf("hapax: opening the store's directory: %w", err)
	}
	if d.own, err = d.self.Stat(); err != nil {
		return fmt.Errorf("hapax: looking at the store's directory: %w", err)
	}
	if d.warnings, err = access(d.path, d.own); err != nil {
		return err
	}
	if err := d.Check(); err != nil { // it was replaced by a link meanwhile
		return fmt.Errorf("%w: %w", storage.ErrForeign, err)
	}
	return nil
}

// Make makes a new directory with mode 0700, durably, and opens it. It returns fs.ErrExist if there
// is anything at path.
func Make(path string) (*Dir, error) {
	path, err := filepath.Abs(path) // the process may change its directory meanwhile
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, &fs.PathError{Op: "mkdir", Path: path, Err: fs.ErrExist}
	}
	parent := filepath.Dir(path)
	if err := makeParents(parent); err != nil {
		return nil, err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	if err := (sidecar.OS{}).SyncDir(parent); err != nil {
		return nil, err
	}
	return Open(path)
}

// Path returns the absolute path of the directory, without symbolic links.
func (d *Dir) Path() string { return d.path }

// Warnings returns what an operator should change about the directory, as sentences.
func (d *Dir) Warnings() []string { return d.warnings }

// Close releases the directory: its lock, and all else that d holds.
func (d *Dir) Close() error {
	d.watch.end()
	var errs []error
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
		forget(d)
	}
	if d.self != nil {
		errs = append(errs, d.self.Close())
	}
	return errors.Join(append(errs, d.root.Close())...)
}

// Contains reports whether path, which need not exist, is the directory or is inside of it, also by
// way of symbolic links.
func (d *Dir) Contains(path string) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	for {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			return isAbove(d.own, resolved)
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false
		}
		path = parent
	}
}

// isAbove reports whether path, which exists and has no symbolic links, is the directory or inside of
// it.
func isAbove(own fs.FileInfo, path string) bool {
	for {
		if info, err := os.Lstat(path); err == nil && os.SameFile(info, own) {
			return true
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false
		}
		path = parent
	}
}

// ErrInside means that a backup was to be made inside of the store's own directory.
var ErrInside = errors.New("hapax: it is the store's own directory, or inside of it: give a directory elsewhere, best on another disk")

// RemoveSelf removes the named files, the file LOCK, and then the directory, if nothing else is in it
// and it is still under its name. It is for a directory that Make has made, and does what it can.
func (d *Dir) RemoveSelf(names ...string) {
	for _, name := range names {
		_ = d.Remove(name)
	}
	if d.lock != nil {
		_ = d.Remove(LockName)
	}
	if d.Check() == nil {
		_ = os.Remove(d.path)
	}
}
