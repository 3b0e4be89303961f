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

// A Dir is the directory of a store. Its methods take names of files in it, not paths, and return
// *fs.PathError and *os.LinkError like package os. They may be called concurrently.
type Dir struct {
	path     string // absolute, without symbolic links
	warnings []string
	root     *os.Root
	self     *os.File // the directory, for its lock
	lock     *os.File // the file LOCK; nil until Lock, or if a reader has found none
	watch    watch
	readOnly bool
	held     bool // the lock; used by one goroutine

	mu      sync.Mutex // guards the fields below; held while names change
	names   map[string]fs.FileInfo
	own     fs.FileInfo
	checked time.Time
	moved   error // the error of the first failed check
}

// Open opens the directory at path. If it is missing, Open creates it durably with mode 0700. It
// neither locks nor changes an existing directory: call Lock before anything is written.
//
// It returns storage.ErrForeign for a symbolic link, for a directory that belongs neither to root
// nor to the user of this process, and for a directory to which others may write. It accepts a
// directory to which a group of this process may write, such as a volume of Kubernetes, see
// Warnings.
func Open(path string) (*Dir, error) {
	path, err := prepare(path, makeDir)
	if err != nil {
		return nil, err
	}
	return open(path, false)
}

// OpenReader opens the directory at path for reading: every method that would change it returns
// fs.ErrPermission. The directory may belong to any user. OpenReader returns fs.ErrNotExist for a missing
// directory, and storage.ErrForeign for a symbolic link.
func OpenReader(path string) (*Dir, error) {
	path, err := prepare(path, func(path string) error { return &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist} })
	if err != nil {
		return nil, err
	}
	return open(path, true)
}

var errReadOnly = fmt.Errorf("hapax: the store's directory was opened for reading only: %w", fs.ErrPermission)

func open(path string, readOnly bool) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("hapax: opening the store's directory: %w", err)
	}
	d := &Dir{path: path, root: root, readOnly: readOnly, names: make(map[string]fs.FileInfo)}
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
		return fmt.Errorf("hapax: checking the store's directory: %w", err)
	}
	if !d.readOnly {
		if d.warnings, err = access(d.path, d.own); err != nil {
			return err
		}
	}
	if err := d.Check(); err != nil { // the directory was replaced with a link meanwhile
		return fmt.Errorf("%w: %w", storage.ErrForeign, err)
	}
	return nil
}

// Make creates a directory with mode 0700, durably, and opens it. It returns fs.ErrExist if path
// exists.
func Make(path string) (*Dir, error) {
	path, err := filepath.Abs(path) // the process may change its working directory later
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

// Warnings returns sentences about what an operator should change in the directory.
func (d *Dir) Warnings() []string { return d.warnings }

// Close releases the lock and closes the descriptors of the directory.
func (d *Dir) Close() error {
	d.watch.end()
	var errs []error
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	if d.held {
		forget(d)
	}
	if d.self != nil {
		errs = append(errs, d.self.Close())
	}
	return errors.Join(append(errs, d.root.Close())...)
}

// Contains reports whether path is the directory or inside it, also through symbolic links. The
// path need not exist.
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

// isAbove reports whether path is the directory or inside it. The path exists and has no symbolic
// links.
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

// ErrInside means that a backup was requested inside the store's directory.
var ErrInside = errors.New("hapax: the directory for the backup is the store's own or inside it: give another directory, best on another disk")

// RemoveSelf removes the named files and the file LOCK, then the directory if it is empty and its
// name still refers to it. It is meant for a directory that Make has created. It ignores errors.
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
