//go:build !unix

package pebble

import "os"

// allocated returns the size of a file, because its disk space is unknown here.
func allocated(info os.FileInfo) int64 { return info.Size() }
