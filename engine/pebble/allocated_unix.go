//go:build unix

package pebble

import (
	"os"
	"syscall"
)

// allocated returns the disk space of a file.
func allocated(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}
