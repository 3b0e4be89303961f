package pebble

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

// A failStopFS is the file system through which Pebble and the sidecars access the store's directory.
//
// After a failed write, Pebble panics, retries endlessly or, during a log rotation, unlocks an
// unlocked mutex, which ends the process and cannot be recovered from. So Pebble never sees a
// failed write: the first failed change of the directory fails the store, and from then on the failStopFS
// discards all changes and reports success. The fault itself makes the failStopFS discard changes, so no
// change is discarded before the fault is visible, and no later result of Pebble is returned to a
// caller. The directory has the state after a crash at that moment, and Pebble can be closed
// normally.
//
// Reads, and changes outside the directory (a backup), fail normally.
type failStopFS struct {
	vfs.FS
	dir   string
	held  *storedir.Dir // nil if FS is not the machine's file system
	lock  io.Closer     // nil until takeLock
	fault *fault
	seed  uint64 // seed of the store's identity, set before Pebble opens the store

	unreadable atomic.Bool  // a read failed for another reason than a missing file
	opening    atomic.Bool  // Pebble is opening the directory for writing
	changing   sync.RWMutex // read-locked by every operation that changes the directory

	written atomic.Uint64
	flushes atomic.Uint64 // number of flushed memtables
	flushed func()        // called after each flush
	emptied chan struct{} // capacity 1: a flush has ended, and logs may be in tables

	damages   *damages
	manifests manifests
	logs      liveLogs
	reserve   reserve
	ownLogs   ownLogs

	ended atomic.Pointer[func() error] // returns an error if the running backup must end
}

// openFailStopFS opens the directory, and creates it if it does not exist. fsys is nil for the machine's
// file system.
func openFailStopFS(fsys vfs.FS, dir string) (*failStopFS, error) {
	if fsys == nil || fsys == vfs.Default {
		held, err := storedir.Open(dir)
		if err != nil {
			return nil, err
		}
		return heldFailStopFS(held), nil
	}
	if dir == "" {
		return nil, errors.New("hapax: the store's directory has no name")
	}
	dir = fsys.PathDir(fsys.PathJoin(dir, lockName)) // in the form that failStopFS.holds gets from a file in it
	if err := makeDir(fsys, dir); err != nil {
		return nil, fmt.Errorf("hapax: creating the store's directory: %w", err)
	}
	return newFailStopFS(fsys, dir), nil
}

// heldFailStopFS returns the failStopFS of a directory of the machine's file system.
func heldFailStopFS(held *storedir.Dir) *failStopFS {
	d := newFailStopFS(&dirFS{FS: vfs.Default, own: held}, held.Path())
	d.held, d.reserve.dir = held, held
	return d
}

func newFailStopFS(fsys vfs.FS, dir string) *failStopFS {
	return &failStopFS{FS: fsys, dir: dir, fault: newFault(), flushed: func() {}, emptied: make(chan struct{}, 1), damages: newDamages()}
}

// dead reports whether the file system discards changes.
func (d *failStopFS) dead() bool { return d.fault.isSet() }

func (d *failStopFS) path(name string) string { return d.PathJoin(d.dir, name) }

func (d *failStopFS) holds(path string) bool { return d.PathDir(path) == d.dir }

// change runs an operation that changes the directory, or discards it. It returns an error only if
// a sidecar of the engine does not fit.
func (d *failStopFS) change(what, path string, op func() error) error {
	d.changing.RLock()
	defer d.changing.RUnlock()
	if d.dead() {
		return nil
	}
	err := op()
	if err == nil {
		return nil
	}
	if sidecar.NoSpace(err) && strings.HasPrefix(d.PathBase(path), sidecarPrefix) {
		return err // the engine needs no sidecar; Pebble does not use it
	}
	d.fault.set(fmt.Errorf("%s %s: %w", what, path, err))
	return nil
}

// drain waits for the operations in progress on a dead failStopFS, and reports whether they have ended.
func (d *failStopFS) drain(patience time.Duration) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if d.changing.TryLock() {
			d.changing.Unlock()
			return true
		}
	}
	return false
}

// Create fails outside the directory when the running backup must end: Pebble, which copies tables
// if it cannot link them, does not know the context of the backup.
func (d *failStopFS) Create(path string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !d.holds(path) {
		if ended := d.ended.Load(); ended != nil {
			if err := (*ended)(); err != nil {
				return nil, err
			}
		}
		return d.FS.Create(path, category)
	}
	d.ownLogs.note(d.PathBase(path))
	return d.file("creating", path, func() (vfs.File, error) {
		if strings.HasPrefix(d.PathBase(path), markerPrefix) {
			// Pebble syncs the directory once, with the marker in it: a power failure before that
			// may leave the marker without the MANIFEST that it names.
			if err := syncDir(d.FS, d.dir); err != nil {
				return nil, err
			}
		}
		return d.maybeLog(path, func() (vfs.File, error) { return d.FS.Create(path, category) })
	})
}

func (d *failStopFS) OpenReadWrite(path string, category vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if !d.holds(path) {
		return d.FS.OpenReadWrite(path, category, o...)
	}
	return d.file("opening", path, func() (vfs.File, error) { return d.FS.OpenReadWrite(path, category, o...) })
}

func (d *failStopFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if !d.holds(to) {
		return d.FS.ReuseForWrite(from, to, category)
	}
	d.ownLogs.note(d.PathBase(to))
	return d.file("reusing", to, func() (vfs.File, error) {
		return d.maybeLog(to, func() (vfs.File, error) { return d.FS.ReuseForWrite(from, to, category) })
	})
}

// maybeLog opens a file for writing. The file may be a log.
func (d *failStopFS) maybeLog(path string, open func() (vfs.File, error)) (vfs.File, error) {
	if strings.HasSuffix(path, logSuffix) {
		return d.logs.open(path, &d.written, &d.reserve, open)
	}
	return open()
}

func (d *failStopFS) file(what, path string, open func() (vfs.File, error)) (vfs.File, error) {
	var f vfs.File
	err := d.change(what, path, func() (err error) {
		f, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	if f == nil {
		f = vfs.NewMemFile(nil) // never written to, because it is dead
	}
	name := d.PathBase(path)
	d.manifests.noteCreated(name)
	return &diskFile{File: f, d: d, path: path, manifest: strings.HasPrefix(name, manifestPrefix)}, nil
}

func (d *failStopFS) Open(path string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(path, o...)
	if err != nil {
		if d.dead() {
			// Files that Pebble has written on the dead file system may be missing. Without a pause, it
			// would retry in a busy loop.
			time.Sleep(deadRetry)
		}
		return nil, d.noteRead(err)
	}
	if strings.HasSuffix(path, logSuffix) { // do not wait for a slow new log to open a table
		f = d.logs.reader(path, f)
	}
	return &diskReader{f, d}, nil
}

// List returns only the store's own files to Pebble, which would delete an old log that another
// program wrote. If List fails during Open, the store fails and Pebble gets no error: otherwise it
// would close its tables while its goroutine still reads their statistics, which panics.
func (d *failStopFS) List(path string) ([]string, error) {
	names, err := listAll(d, path)
	if err != nil && d.opening.Load() {
		d.fault.set(fmt.Errorf("reading %s: %w", path, err))
		return nil, nil
	}
	if path == d.dir {
		names = slices.DeleteFunc(names, func(name string) bool { return !isPebbleFile(name) })
	}
	return names, err
}

// names returns the names of all files in the directory.
func (d *failStopFS) names() ([]string, error) { return listAll(d, d.dir) }

func listAll(d *failStopFS, path string) ([]string, error) {
	names, err := d.FS.List(path)
	return names, d.noteRead(err)
}

func (d *failStopFS) Stat(path string) (vfs.FileInfo, error) {
	info, err := d.FS.Stat(path)
	return info, d.noteRead(err)
}

// noteRead records that the file system failed to read, which is not damage.
func (d *failStopFS) noteRead(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrNotExist) {
		d.unreadable.Store(true)
	}
	return err
}

// deadRetry slows down Pebble's retries on a dead failStopFS until it is closed.
const deadRetry = 20 * time.Millisecond

func (d *failStopFS) OpenDir(path string) (vfs.File, error) {
	f, err := d.FS.OpenDir(path)
	if err != nil || path != d.dir {
		return f, d.noteRead(err)
	}
	return &diskDir{f, d}, nil
}

// Link copies durably if the file system has no hard links, except to a stage, which is only for
// links. The copy detects a failing disk.
func (d *failStopFS) Link(from, to string) error {
	err := d.link(from, to)
	switch {
	case err == nil, errors.Is(err, fs.ErrExist):
		return err
	case d.PathDir(to) == d.path(stageName):
		return errNoLinks
	}
	return vfs.Copy(d, from, to)
}

// errNoLinks means that a stage is impossible. Pebble itself does not copy if linking is not
// permitted.
var errNoLinks = fmt.Errorf("no hard links: %w", fs.ErrPermission)

func (d *failStopFS) link(from, to string) error {
	if !d.holds(to) {
		return d.FS.Link(from, to)
	}
	d.changing.RLock()
	defer d.changing.RUnlock()
	if d.dead() {
		return nil
	}
	return d.FS.Link(from, to)
}

func (d *failStopFS) Rename(from, to string) error {
	if !d.holds(to) {
		return d.FS.Rename(from, to)
	}
	return d.change("renaming to", to, func() error { return d.FS.Rename(from, to) })
}

// Remove fails like any other operation. No data is lost if a file remains.
func (d *failStopFS) Remove(path string) error {
	if !d.holds(path) {
		return d.FS.Remove(path)
	}
	d.changing.RLock()
	defer d.changing.RUnlock()
	if d.dead() {
		return nil
	}
	return d.FS.Remove(path)
}

// protect makes the store's files readable only for their owner, and logs warnings about the
// directory.
func (d *failStopFS) protect(log *slog.Logger) {
	if d.held == nil {
		return
	}
	for _, warning := range d.held.Warnings() {
		log.Warn("hapax: " + warning)
	}
	d.held.Protect(isOurs)
}

// track adds a file to those that recheck checks.
func (d *failStopFS) track(name string) error {
	if d.held == nil {
		return nil
	}
	return d.held.Track(name)
}

// recheck returns storage.ErrMoved if the directory is not the one that was opened.
func (d *failStopFS) recheck() error {
	if d.held == nil {
		return nil
	}
	return d.held.Recheck()
}

// Lock is called by Pebble and does nothing: the store already has the lock, and keeps it until it
// is closed.
func (d *failStopFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (d *failStopFS) Unwrap() vfs.FS { return d.FS }

// A diskReader is a file that was opened for reading.
type diskReader struct {
	vfs.File
	d *failStopFS
}

func (f *diskReader) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	return n, f.d.noteRead(err)
}

func (f *diskReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	return n, f.d.noteRead(err)
}

// A diskFile is a file of the directory that was opened for writing.
type diskFile struct {
	vfs.File
	d        *failStopFS
	path     string
	manifest bool
	pos      uint64 // position in a MANIFEST; there is one writer
}

func (f *diskFile) Write(p []byte) (int, error) {
	err := f.d.change("writing", f.path, func() error {
		n, err := f.File.Write(p)
		f.d.written.Add(uint64(n))
		f.pos += uint64(n)
		return err
	})
	return len(p), err
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.d.change("writing", f.path, func() error {
		n, err := f.File.WriteAt(p, off)
		f.d.written.Add(uint64(n))
		return err
	})
	return len(p), err
}

// maxPreallocate is the maximum disk space that is allocated for a log at once. Pebble requests the
// size of a memtable, several times the size of a small store.
const maxPreallocate = 8 << 20

func (f *diskFile) Preallocate(offset, length int64) error {
	length = min(length, maxPreallocate)
	if !f.d.reserve.leaves(length) {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

func (f *diskFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *diskFile) SyncData() error { return f.sync(f.File.SyncData) }

func (f *diskFile) sync(sync func() error) error {
	return f.d.change("syncing", f.path, func() error {
		pos := f.pos
		if err := cmp.Or(sync(), f.d.recheck()); err != nil {
			return err
		}
		if f.manifest {
			f.d.manifests.noteSynced(position{f.d.PathBase(f.path), pos})
		}
		return nil
	})
}

func (f *diskFile) SyncTo(length int64) (full bool, err error) {
	err = f.d.change("syncing", f.path, func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *diskFile) Close() error {
	if f.d.dead() {
		_ = f.File.Close() // the descriptor is closed in any case
		return nil
	}
	return f.d.change("closing", f.path, f.File.Close)
}

// A diskDir is the directory, opened to be synced.
type diskDir struct {
	vfs.File
	d *failStopFS
}

func (f *diskDir) Sync() error {
	return f.d.change("syncing", f.d.dir, func() error {
		marked := f.d.manifests.pendingMark()
		if err := cmp.Or(f.File.Sync(), f.d.recheck()); err != nil {
			return err
		}
		f.d.manifests.noteMarked(marked)
		return nil
	})
}
