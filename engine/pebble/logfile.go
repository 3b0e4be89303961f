package pebble

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// minZeros and maxZeros bound how many zeros are written at once after the end of a log.
	// Between these bounds, the number is the length of the log, so that a small log stays small.
	minZeros = 64 << 10
	maxZeros = 1 << 20

	// zerosPerSync is the mean number of bytes per sync above which zeros cost more than they save.
	zerosPerSync = 64 << 10
)

var zeros [maxZeros]byte

// liveLogs are the logs that are being written, by path.
type liveLogs struct {
	mu    sync.Mutex
	files map[string]*logFile
}

// open opens a log for writing. It replaces an older log that the file may contain.
func (l *liveLogs) open(path string, written *atomic.Uint64, reserve *reserve, open func() (vfs.File, error)) (vfs.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := open()
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	log := &logFile{File: f, size: info.Size(), written: written, reserve: reserve, end: reserve.newLog()}
	log.closed = func() { l.remove(path) }
	if l.files == nil {
		l.files = make(map[string]*logFile)
	}
	l.files[path] = log
	return log, nil
}

func (l *liveLogs) remove(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.files, path)
}

// reader returns f, a log that was opened for reading. If the log is being written, the result ends
// at its current end. Otherwise, a reader could read zeros where bytes are written a moment later,
// then later bytes, and take the zeros for damage.
func (l *liveLogs) reader(path string, f vfs.File) vfs.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	if log := l.files[path]; log != nil {
		return &logReader{File: f, left: log.pos.Load()}
	}
	return f
}

// A logFile is one of Pebble's logs, opened for writing, with zeros after its end. Overwriting
// bytes is synced faster than extending the file, for which the file system must also write
// metadata. Pebble reuses its logs for this reason, but each log is extended when it is first used.
// Readers take zeros for the end of the log, as after a crash.
type logFile struct {
	vfs.File
	pos     atomic.Int64   // position of the next write; there is one writer
	size    int64          // of the file
	written *atomic.Uint64 // receives the number of zeros written
	syncs   atomic.Int64
	full    bool          // no space for zeros
	reserve *reserve      // nil for none
	end     *atomic.Int64 // the end up to which there is a reserve
	closed  func()
}

// Write implements vfs.File.
func (f *logFile) Write(p []byte) (int, error) {
	if end := f.pos.Load() + int64(len(p)); f.reserve != nil && end > f.end.Load() {
		if err := f.reserve.logGrows(f.end, end); err != nil {
			return 0, err
		}
	}
	n, err := f.File.Write(p)
	pos := f.pos.Add(int64(n))
	if err == nil && pos > f.size {
		f.size = pos
		if pos < zerosPerSync*(f.syncs.Load()+1) {
			f.extend(min(max(pos, minZeros), maxZeros))
		}
	}
	return n, err
}

// extend writes n zeros after the end of the file. It is not a failure if they do not fit on the
// disk.
func (f *logFile) extend(n int64) {
	if f.full {
		return
	}
	k, err := f.WriteAt(zeros[:n], f.size)
	f.size += int64(k)
	f.written.Add(uint64(k))
	f.full = err != nil
}

// SyncData implements vfs.File. Pebble calls no other sync of a log.
func (f *logFile) SyncData() error {
	f.syncs.Add(1)
	return f.File.SyncData()
}

// Close implements vfs.File.
func (f *logFile) Close() error {
	f.closed()
	return f.File.Close()
}

// A logReader is a log that was opened for reading from its start while it was written.
type logReader struct {
	vfs.File
	left int64
}

// Read implements vfs.File.
func (f *logReader) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.File.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	return n, err
}
