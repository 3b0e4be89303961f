package storedir

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockOffset is after the end of the file, because locked bytes cannot be read.
const lockOffset = 1 << 30

// tryLock takes the lock of the file, which ends with the handle. busy reports whether another
// handle has the lock. A directory cannot be locked.
func tryLock(f *os.File) (busy bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{OffsetHigh: lockOffset})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, nil
	}
	return false, err
}

// unlock does nothing, because a directory cannot be locked.
func unlock(*os.File) {}
