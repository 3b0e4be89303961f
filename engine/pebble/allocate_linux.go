package pebble

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const errNoSpace = syscall.ENOSPC

// allocate extends a file and allocates disk space for all of it.
func allocate(f *os.File, offset, n int64) error { return unix.Fallocate(int(f.Fd()), 0, offset, n) }
