// Package crashfs lets tests copy the state of Pebble's file system in memory after a power failure
// while a store uses it. In Pebble v2.1.7, some operations of a vfs.MemFS lock its mutex for clones
// twice: a CrashClone between the two waits for the operation, and the operation for it.
package crashfs

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// cloning is held for reading by the operations that lock that mutex twice.
var cloning sync.RWMutex

// Wrap returns the file system for a store that runs while Clone is called.
func Wrap(fsys *vfs.MemFS) vfs.FS { return wrapped{fsys} }

// Clone returns the file system as a power failure at this moment would leave it. All goroutines
// that use the file system use it through Wrap.
func Clone(fsys *vfs.MemFS, cfg vfs.CrashCloneCfg) *vfs.MemFS {
	cloning.Lock()
	defer cloning.Unlock()
	return fsys.CrashClone(cfg)
}

type wrapped struct{ vfs.FS }

func (f wrapped) Link(oldname, newname string) error {
	cloning.RLock()
	defer cloning.RUnlock()
	return f.FS.Link(oldname, newname)
}

func (f wrapped) Lock(name string) (io.Closer, error) {
	cloning.RLock()
	defer cloning.RUnlock()
	return f.FS.Lock(name)
}
