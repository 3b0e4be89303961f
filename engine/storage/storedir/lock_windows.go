package storedir

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockOffset is a byte that the file does not have: locked bytes cannot be read.
const lockOffset = 1 << 30

// tryLock takes the file's lock, which ends with the handle. busy: another handle has it. A
// directory cannot be locked.
func tryLock(f *os.File) (busy bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{OffsetHigh: lockOffset})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return true, nil
	}
	return false, err
}

// unlock does nothing: it is for the directory.
func unlock(*os.File) {}
