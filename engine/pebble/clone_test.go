package pebble

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// cloning is held for reading by the operations of a MemFS that take its lock for clones twice: a
// CrashClone that comes between the two would wait for them, and they for it.
var cloning sync.RWMutex

// clonable is a MemFS of which crashClone makes clones while others use it.
type clonable struct{ vfs.FS }

func (f clonable) Link(oldname, newname string) error {
	cloning.RLock()
	defer cloning.RUnlock()
	return f.FS.Link(oldname, newname)
}

func (f clonable) Lock(name string) (io.Closer, error) {
	cloning.RLock()
	defer cloning.RUnlock()
	return f.FS.Lock(name)
}

func crashClone(fsys *vfs.MemFS, cfg vfs.CrashCloneCfg) *vfs.MemFS {
	cloning.Lock()
	defer cloning.Unlock()
	return fsys.CrashClone(cfg)
}
