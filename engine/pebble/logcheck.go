package pebble

import (
	"fmt"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
)

// A logCheck is a failStopFS from which Pebble opens the store read-only. It checks the logs that Pebble
// replays; the contents of other logs are in tables.
type logCheck struct {
	vfs.FS // disk
	disk   *failStopFS
	checks sync.WaitGroup

	mu      sync.Mutex // guards the fields below; held while a log is read
	buf     []byte
	durable uint64 // newest batch that a durability record covers
	err     error  // error of the first damaged log
}

func newLogCheck(d *failStopFS) *logCheck { return &logCheck{FS: d, disk: d} }

// Open implements vfs.FS.
func (l *logCheck) Open(path string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := l.disk.Open(path, o...)
	if err == nil && strings.HasSuffix(path, logSuffix) {
		l.checks.Go(func() { l.check(path) })
	}
	return f, err
}

// wait waits for the checks and returns the error of the first damaged log. It must be called after
// Pebble has opened all logs.
func (l *logCheck) wait() error {
	l.checks.Wait()
	return l.err
}

// check reads a log to its end.
func (l *logCheck) check(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	name := l.disk.PathBase(path)
	var err error
	if l.buf, err = readInto(l.buf, l.disk, path); err != nil {
		l.err = asDamage(l.disk, "reading "+name, err)
		return
	}
	scan := scanLog(l.buf, uint32(fileNumber(name)))
	if scan.proof {
		l.err = fmt.Errorf("%w: %s is unreadable at byte %d, which was durable", storage.ErrDamaged, name, scan.valid)
	}
	l.durable = max(l.durable, scan.newest)
}
