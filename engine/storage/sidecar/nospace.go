package sidecar

import (
	"errors"
	"syscall"
)

// NoSpace reports whether err says that the disk, or what its user may occupy of it, is full. A
// file that finds no room is no sign of a bad disk.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isDiskFull(err)
}
