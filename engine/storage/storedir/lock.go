package storedir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// LockName is the file that is locked together with the directory. It contains the last process
// that has locked it.
const LockName = "LOCK"

const (
	lockRetry = 10 * time.Millisecond

	// minLockTimeout is longer than a child process of this process holds the descriptors between
	// its start and its exec.
	minLockTimeout = 50 * time.Millisecond
)

// Lock locks the directory for d until d is closed or the process ends. It locks the file LOCK,
// which it creates, and also the directory itself if the system and the file system support that,
// so that the lock cannot be removed. While another Dir or process has the lock, Lock retries until
// the timeout has passed, at least 50 ms, and then returns storage.ErrLocked with the owner.
//
// A Dir for reading locks what exists of both for itself and other readers, and creates nothing:
// readers exclude only the owner, and the owner all readers.
//
// It locks on systems with flock (Linux, macOS and the BSDs), and on Windows, where it locks only
// the file. On other systems, it refuses only a second Dir in the same process.
func (d *Dir) Lock(timeout time.Duration) error {
	timeout = max(timeout, minLockTimeout)
	for deadline := time.Now().Add(timeout); ; time.Sleep(lockRetry) {
		by, err := d.tryLock()
		switch {
		case err != nil:
			return err
		case by == "":
			d.held = true
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%w: %s %s", storage.ErrLocked, d.path, by)
		}
	}
}

// tryLock says by whom the directory is locked if another Dir or process has the lock.
func (d *Dir) tryLock() (by string, err error) {
	if !remember(d) {
		return "is open in this process", nil
	}
	if by, err = lockBoth(d); by != "" || err != nil {
		forget(d)
		unlock(d.self)
	}
	return by, err
}

func lockBoth(d *Dir) (by string, err error) {
	// A file system that cannot lock a directory, such as NFS, locks only the file.
	if busy, err := tryLock(d.self, d.readOnly); err == nil && busy {
		return lockedBy(d, d.self), nil
	}
	f, err := openLock(d)
	if f == nil || err != nil {
		return "", err
	}
	busy, err := tryLock(f, d.readOnly)
	if err == nil && !busy {
		busy, err = isOther(d, f)
	}
	switch {
	case err != nil:
		return "", errors.Join(fmt.Errorf("hapax: locking %s: %w", d.path, err), f.Close())
	case busy:
		by := lockedBy(d, f)
		return by, f.Close()
	}
	d.lock = f
	if !d.readOnly {
		sign(f)
	}
	if err := errors.Join(d.Track(LockName), d.Check()); err != nil {
		d.lock = nil
		return "", errors.Join(err, f.Close())
	}
	return "", nil
}

// lockedBy says who has the lock of f, which d could not get.
func lockedBy(d *Dir, f *os.File) string {
	if busy, err := tryLock(f, true); !d.readOnly && err == nil && !busy { // Lock closes f, or unlocks it
		return "is being read by another process"
	}
	return "was opened by " + ownerOf(d)
}

// openLock returns nil for a reader if there is no file.
func openLock(d *Dir) (*os.File, error) {
	var f *os.File
	var err error
	if d.readOnly {
		if f, err = d.OpenFile(LockName, os.O_RDONLY); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	} else if f, err = d.OpenFile(LockName, os.O_RDWR|os.O_CREATE); errors.Is(err, fs.ErrExist) { // another process has made it
		f, err = d.OpenFile(LockName, os.O_RDWR)
	}
	if err != nil {
		return nil, fmt.Errorf("hapax: opening the lock: %w", err)
	}
	if text := read(f); text != "" && !strings.HasPrefix(text, signature) {
		return nil, errors.Join(fmt.Errorf("%w: %s in %s is not the lock of a store: move it away, it is not the store's",
			storage.ErrForeign, LockName, d.path), f.Close())
	}
	return f, nil
}

// isOther reports whether LOCK is now a different file than f, because f was removed before it was
// locked.
func isOther(d *Dir, f *os.File) (bool, error) {
	is, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := d.root.Lstat(LockName)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return err == nil && !os.SameFile(is, named), err
}

// signature is the start of the content of LOCK.
const signature = "hapax: opened by "

// sign writes the owner of the lock to LOCK. This is information for people, so errors are ignored:
// a full disk must not prevent a store from being opened.
func sign(f *os.File) {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%sprocess %d on %s at %s\n", signature, os.Getpid(), host, time.Now().UTC().Format(time.RFC3339))
	}
}

// ownerOf returns the owner that sign wrote.
func ownerOf(d *Dir) string {
	f, err := d.OpenFile(LockName, os.O_RDONLY)
	if err != nil {
		return "another process"
	}
	defer func() { _ = f.Close() }() // it was only read
	owner, signed := strings.CutPrefix(read(f), signature)
	owner, _, ended := strings.Cut(owner, "\n")
	if !signed || !ended || strings.ContainsFunc(owner, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "another process"
	}
	return owner
}

// read returns the start of a file.
func read(f *os.File) string {
	b := make([]byte, 512)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(b[:n])
}

// locked has the directories that this process has locked. It is needed because some file systems
// do not distinguish between the descriptors of a process.
var locked struct {
	mu   sync.Mutex // guards dirs
	dirs []*Dir
}

// remember adds d, unless another Dir for the same directory is there and one of both is no reader.
func remember(d *Dir) bool {
	locked.mu.Lock()
	defer locked.mu.Unlock()
	if slices.ContainsFunc(locked.dirs, func(other *Dir) bool { return os.SameFile(other.own, d.own) && (!other.readOnly || !d.readOnly) }) {
		return false
	}
	locked.dirs = append(locked.dirs, d)
	return true
}

func forget(d *Dir) {
	locked.mu.Lock()
	defer locked.mu.Unlock()
	locked.dirs = slices.DeleteFunc(locked.dirs, func(other *Dir) bool { return other == d })
}
