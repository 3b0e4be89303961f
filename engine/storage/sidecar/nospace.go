package sidecar

import (
	"errors"
	"syscall"
)

// NoSpace reports whether err means that the disk or its user's quota is full. Such an error does
// not mean that the disk is faulty.
func NoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isDiskFull(err)
}
