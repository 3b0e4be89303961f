//go:build !linux

package pebble

import (
	"os"
	"syscall"
)

const errNoSpace = syscall.ENOSPC

// allocate extends a file and allocates disk space for all of it.
func allocate(f *os.File, offset, n int64) error { return writeRandom(f, offset, n) }
