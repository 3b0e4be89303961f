package pebble

import (
	"os"

	"golang.org/x/sys/unix"
)

// ext4 writes a part of a file on request; other file systems ignore the request, like ZFS, or were
// not tested.
const ext4Magic = 0xef53

func canSyncRange(f *os.File) bool {
	var stat unix.Statfs_t
	fd := int(f.Fd())
	return unix.Fstatfs(fd, &stat) == nil && stat.Type == ext4Magic && unix.SyncFileRange(fd, 0, 0, 0) != unix.ENOSYS
}

// Preallocate implements vfs.File.
func (f *osFile) Preallocate(offset, length int64) error {
	return unix.Fallocate(int(f.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, offset, length)
}

// Prefetch implements vfs.File.
func (f *osFile) Prefetch(offset, length int64) error {
	_, _, err := unix.Syscall(unix.SYS_READAHEAD, f.file.Fd(), uintptr(offset), uintptr(length))
	return err
}

// SyncData implements vfs.File.
func (f *osFile) SyncData() error { return unix.Fdatasync(int(f.file.Fd())) }

// SyncTo implements vfs.File. It starts writing the first part of the file, and waits for the part
// that was started before, so that little is left for the final sync.
func (f *osFile) SyncTo(length int64) (full bool, err error) {
	if !f.syncRange {
		return true, f.SyncData()
	}
	return false, unix.SyncFileRange(int(f.file.Fd()), 0, length, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE)
}

func syncDirFile(f *os.File) error { return f.Sync() }
