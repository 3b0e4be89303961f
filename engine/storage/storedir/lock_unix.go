//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package storedir

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock of the file, which ends with the file's last descriptor. busy reports
// whether another descriptor has the lock.
func tryLock(f *os.File) (busy bool, err error) {
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
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
