package bolt

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	bbolt "go.etcd.io/bbolt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// Options configure a store. The zero value of each field is the stated default.
type Options struct {
	// LockTimeout is how long Open waits for another process to release the directory. 0 = 1
	// second.
	LockTimeout time.Duration

	// MaxFileBytes is the maximum size of the file. 0 = 16 GiB, or 512 MiB on systems with 32-bit
	// addresses. A batch that needs more fails, and the store with it; open the store again with a
	// larger maximum to continue. That much address space is reserved while the store is open, but
	// no memory. (On Windows nothing is reserved, because the file would grow to that size: an
	// Apply that needs a larger mapping waits for the reads in progress.)
	MaxFileBytes int64

	// Logger receives warnings of Open about the modes of the directory. nil = slog.Default().
	Logger *slog.Logger

	copy *copyOptions // nil for a store whose waits are to be believed

	// For tests.
	opened func(*os.File)              // called with the file that bbolt has opened
	files  func(sidecar.FS) sidecar.FS // wraps the file system for sidecars and CLEAN
}

const (
	defaultLockTimeout = time.Second
	minFileBytes       = 1 << 20

	fileBytes32 = int64(512) << 20 // default of MaxFileBytes with 32-bit addresses
	fileBytes64 = int64(16) << 30

	// fullPages is the fill percentage where entries are appended in key order.
	fullPages = 0.95
)

// defaultFileBytes is the default of Options.MaxFileBytes. Tests under an emulator reduce it.
var defaultFileBytes = func() int64 {
	if strconv.IntSize == 32 {
		return fileBytes32
	}
	return fileBytes64
}()

func (o *Options) check() error {
	if o.LockTimeout == 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if o.files == nil {
		o.files = func(fsys sidecar.FS) sidecar.FS { return fsys }
	}
	if o.opened == nil {
		o.opened = func(*os.File) {}
	}
	o.Logger = untrusted.Logger(o.Logger)
	limit := int64(1) << 46
	if strconv.IntSize == 32 {
		limit = 1 << 30
	}
	if o.MaxFileBytes == 0 {
		o.MaxFileBytes = defaultFileBytes
	}
	if o.LockTimeout < 0 {
		return fmt.Errorf("hapax: bolt: LockTimeout is %v", o.LockTimeout)
	}
	if o.MaxFileBytes < minFileBytes || o.MaxFileBytes > limit {
		return fmt.Errorf("hapax: bolt: MaxFileBytes is %d, not from %d to %d", o.MaxFileBytes, minFileBytes, limit)
	}
	return nil
}

// bbolt returns the options with which bbolt opens a file of dir.
func (o *Options) bbolt(dir *storedir.Dir) *bbolt.Options {
	b := &bbolt.Options{
		Timeout:      o.LockTimeout,
		FreelistType: bbolt.FreelistMapType,
		MaxSize:      int(o.MaxFileBytes),
		OpenFile: func(path string, flag int, _ os.FileMode) (*os.File, error) {
			f, err := dir.OpenFile(filepath.Base(path), flag)
			if err == nil {
				o.opened(f)
			}
			return f, err
		},
	}
	if runtime.GOOS != "windows" {
		b.InitialMmapSize = int(o.MaxFileBytes)
	}
	return b
}

// growStep is how much the file grows at a time. Each growth costs a sync, and unused bytes occupy
// disk space.
func growStep(size int64) int { return int(min(max(size/8, minGrowStep), 16<<20)) }

const minGrowStep = 128 << 10

// copyOptions make a store a copy.
type copyOptions struct {
	identity storage.Identity // with which the store is created, zero if it must exist
}

// kind returns the kind of the store.
func (o *Options) kind() sidecar.Kind {
	if o.copy != nil {
		return sidecar.Bolt.Copy()
	}
	return sidecar.Bolt
}

// identity returns the identity of a store that is created.
func (o *Options) identity() (storage.Identity, error) {
	switch {
	case o.copy == nil:
		return storage.NewIdentity(), nil
	case o.copy.identity == storage.Identity{}:
		return storage.Identity{}, fmt.Errorf("hapax: there is no copy: %w", fs.ErrNotExist)
	}
	return o.copy.identity, nil
}
