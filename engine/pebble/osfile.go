package pebble

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An osFile is a file of the machine as Pebble needs it. The methods that depend on the system are in
// osfile_linux.go and osfile_other.go.
type osFile struct {
	*os.File
	syncRange bool // see SyncTo
}

func newOSFile(f *os.File) vfs.File { return &osFile{f, canSyncRange(f)} }

// Stat implements vfs.File.
func (f *osFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	if err != nil {
		return nil, err
	}
	return osInfo{FileInfo: info}, nil
}

// An osInfo describes a file. It does not know its device, which Pebble needs for its metrics only.
type osInfo struct{ os.FileInfo }

// DeviceID implements vfs.FileInfo.
func (osInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

// An osDir is a directory, opened to be synced.
type osDir struct{ osFile }

// Stat implements vfs.File.
func (d osDir) Stat() (vfs.FileInfo, error) { return d.osFile.Stat() }

// Preallocate implements vfs.File.
func (osDir) Preallocate(int64, int64) error { return nil }

// Prefetch implements vfs.File.
func (osDir) Prefetch(int64, int64) error { return nil }

// Sync implements vfs.File.
func (d osDir) Sync() error { return syncDirFile(d.File) }

// SyncData implements vfs.File.
func (d osDir) SyncData() error { return d.Sync() }

// SyncTo implements vfs.File.
func (osDir) SyncTo(int64) (full bool, err error) { return false, nil }
