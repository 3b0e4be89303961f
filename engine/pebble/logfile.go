package pebble

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// minZeros and maxZeros bound how many zeros are written at once after the end of a log. In
	// between it is as many as the log has bytes, so that a small log stays small.
	minZeros = 64 << 10
	maxZeros = 1 << 20

	// zerosPerSync is the mean number of bytes synced at once from which zeros cost more than they
	// save.
	zerosPerSync = 64 << 10
)

var zeros [maxZeros]byte

// A logFile is one of Pebble's logs, opened for writing, with zeros after its end. Bytes that replace
// others are synced in half the time of bytes that make the file longer, for which the file system
// also has to write metadata. Pebble reuses its logs for this reason, but each is made longer when it
// is used first. Readers take zeros for the end of the log, as they do after a crash.
type logFile struct {
	vfs.File
	written   *atomic.Uint64 // receives the number of zeros written
	pos, size int64          // of the next write; of the file. There is one writer
	syncs     atomic.Int64
	full      bool // zeros could not be written
}

// Write implements vfs.File.
func (f *logFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.pos += int64(n)
	if err == nil && f.pos > f.size {
		f.size = f.pos
		if f.pos < zerosPerSync*(f.syncs.Load()+1) {
			f.extend(min(max(f.pos, minZeros), maxZeros))
		}
	}
	return n, err
}

// extend writes n zeros after the end of the file. There may not be room for them, which is no
// failure.
func (f *logFile) extend(n int64) {
	if f.full {
		return
	}
	k, err := f.WriteAt(zeros[:n], f.size)
	f.size += int64(k)
	f.written.Add(uint64(k))
	f.full = err != nil
}

// Sync implements vfs.File.
func (f *logFile) Sync() error {
	f.syncs.Add(1)
	return f.File.Sync()
}

// SyncData implements vfs.File.
func (f *logFile) SyncData() error {
	f.syncs.Add(1)
	return f.File.SyncData()
}
