//go:build !unix

package pebble

import "os"

// allocated returns the size of a file: the space that it takes is not known.
func allocated(info os.FileInfo) int64 { return info.Size() }
