package sidecar

import (
	"errors"
	"syscall"
)

// NoSpace reports whether err means that the disk or its user's quota is full. The
// disk is not considered faulty then.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isDiskFull(err)
}
