//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package sidecar

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the file's lock, which ends with the file's last descriptor. busy: another process
// has it.
func tryLock(f *os.File) (busy bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
