package pebble

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An osFile is a file of the operating system with the methods that Pebble needs. The methods that
// depend on the system are in osfile_linux.go and osfile_other.go.
type osFile struct {
	file      *os.File
	syncRange bool // see SyncTo
}

func newOSFile(f *os.File) vfs.File { return &osFile{f, canSyncRange(f)} }

// Read implements vfs.File.
func (f *osFile) Read(p []byte) (int, error) { return f.file.Read(p) }

// ReadAt implements vfs.File.
func (f *osFile) ReadAt(p []byte, off int64) (int, error) { return f.file.ReadAt(p, off) }

// Write implements vfs.File.
func (f *osFile) Write(p []byte) (int, error) { return f.file.Write(p) }

// WriteAt implements vfs.File.
func (f *osFile) WriteAt(p []byte, off int64) (int, error) { return f.file.WriteAt(p, off) }

// Sync implements vfs.File.
func (f *osFile) Sync() error { return f.file.Sync() }

// Fd implements vfs.File.
func (f *osFile) Fd() uintptr { return f.file.Fd() }

// Close implements vfs.File.
func (f *osFile) Close() error { return f.file.Close() }

// Stat implements vfs.File.
func (f *osFile) Stat() (vfs.FileInfo, error) {
	info, err := f.file.Stat()
	if err != nil {
		return nil, err
	}
	return osInfo{FileInfo: info}, nil
}

// An osInfo describes a file, without its device, which Pebble needs only for metrics.
type osInfo struct{ os.FileInfo }

// DeviceID implements vfs.FileInfo.
func (osInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

// An osDir is a directory, opened to be synced.
type osDir struct {
	vfs.File
	file *os.File
}

// Preallocate implements vfs.File.
func (osDir) Preallocate(int64, int64) error { return nil }

// Prefetch implements vfs.File.
func (osDir) Prefetch(int64, int64) error { return nil }

// Sync implements vfs.File.
func (d osDir) Sync() error { return syncDirFile(d.file) }

// SyncData implements vfs.File.
func (d osDir) SyncData() error { return d.Sync() }

// SyncTo implements vfs.File.
func (osDir) SyncTo(int64) (full bool, err error) { return false, nil }
