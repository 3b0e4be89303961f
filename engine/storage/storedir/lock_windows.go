package storedir

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockOffset is after the end of the file, because locked bytes cannot be read.
const lockOffset = 1 << 30

// tryLock takes the lock of the file, which ends with the handle, alone or shared with others. busy
// reports whether another handle has the lock. A directory cannot be locked.
func tryLock(f *os.File, shared bool) (busy bool, err error) {
	how := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if !shared {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err = windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{OffsetHigh: lockOffset})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, nil
	}
	return false, err
}

// unlock does nothing, because a directory cannot be locked.
func unlock(*os.File) {}
