// Package crashfs is Pebble's file system in memory, for tests that copy it while a store uses it.
// A copy is what a power failure would leave.
package crashfs

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An FS is a vfs.MemFS that can be copied at any time. In Pebble v2.1.7, some operations of a MemFS
// lock its mutex for copies twice. A CrashClone between the two deadlocks with the operation.
type FS struct {
	*vfs.MemFS
	copying *sync.RWMutex // held for reading by the operations that lock that mutex twice
}

var _ vfs.FS = (*FS)(nil)

// New returns an empty file system.
func New() *FS { return wrap(vfs.NewCrashableMem()) }

func wrap(fsys *vfs.MemFS) *FS { return &FS{fsys, new(sync.RWMutex)} }

// CrashClone returns the file system as a power failure at this moment would leave it.
func (f *FS) CrashClone(cfg vfs.CrashCloneCfg) *FS {
	f.copying.Lock()
	defer f.copying.Unlock()
	return wrap(f.MemFS.CrashClone(cfg))
}

// Link implements vfs.FS.
func (f *FS) Link(oldname, newname string) error {
	f.copying.RLock()
	defer f.copying.RUnlock()
	return f.MemFS.Link(oldname, newname)
}

// ReuseForWrite implements vfs.FS.
func (f *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.copying.RLock()
	defer f.copying.RUnlock()
	return f.MemFS.ReuseForWrite(oldname, newname, category)
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (io.Closer, error) {
	f.copying.RLock()
	defer f.copying.RUnlock()
	return f.MemFS.Lock(name)
}
