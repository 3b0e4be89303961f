//go:build !linux

package pebble

import (
	"os"
	"syscall"
)

const errNoSpace = syscall.ENOSPC

// allocate makes a file longer, with space for all of it.
func allocate(f *os.File, offset, n int64) error { return writeRandom(f, offset, n) }
