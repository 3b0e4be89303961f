package sidecar

import (
	"errors"
	"syscall"
)

// The codes of the Windows API, which package syscall does not name.
const (
	errorHandleDiskFull = syscall.Errno(39)
	errorDiskFull       = syscall.Errno(112)
)

func isDiskFull(err error) bool {
	return errors.Is(err, errorHandleDiskFull) || errors.Is(err, errorDiskFull)
}
