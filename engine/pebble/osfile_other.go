//go:build !linux

package pebble

import (
	"os"
	"runtime"
)

func canSyncRange(*os.File) bool { return false }

// Preallocate implements vfs.File.
func (*osFile) Preallocate(int64, int64) error { return nil }

// Prefetch implements vfs.File.
func (*osFile) Prefetch(int64, int64) error { return nil }

// SyncData implements vfs.File.
func (f *osFile) SyncData() error { return f.file.Sync() }

// SyncTo implements vfs.File.
func (f *osFile) SyncTo(int64) (full bool, err error) { return true, f.file.Sync() }

// syncDirFile does nothing on Windows, which cannot sync a directory.
func syncDirFile(f *os.File) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return f.Sync()
}
