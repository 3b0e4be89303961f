package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// exchange exchanges the names of two directories, at one moment.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // the file system, or the kernel
		return errors.ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("exchanging %s and %s: %w", a, b, err)
	}
	return nil
}
