//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package storedir

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock of the file, which ends with the file's last descriptor, alone or shared with
// others. busy reports whether another descriptor has the lock.
func tryLock(f *os.File, shared bool) (busy bool, err error) {
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	err = flock(f, how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

func unlock(f *os.File) { _ = flock(f, syscall.LOCK_UN) }

func flock(f *os.File, how int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	err = raw.Control(func(fd uintptr) {
		for {
			if locked = syscall.Flock(int(fd), how); !errors.Is(locked, syscall.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, locked)
}
