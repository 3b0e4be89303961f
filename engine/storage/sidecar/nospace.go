package sidecar

import (
	"errors"
	"syscall"
)

// NoSpace reports whether err means that the disk or its user's quota is full. A file that does not
// fit is no sign of a bad disk.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isDiskFull(err)
}
