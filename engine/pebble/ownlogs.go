package pebble

import (
	"fmt"
	"io"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// ownLogs has the names of the logs that existed when the store was opened, and of those that it
// has created since. Close removes no other logs.
type ownLogs struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

func (l *ownLogs) note(name string) {
	if !isLog(name) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = make(map[string]bool)
	}
	l.names[name] = true
}

func (l *ownLogs) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[name]
}

// noteLogs adds the logs in the directory. It rejects a log that cannot be Pebble's, such as
// 20260101.log.
func (d *failStopFS) noteLogs() error {
	names, err := d.List(d.dir)
	if err != nil {
		return fmt.Errorf("hapax: reading the store's directory: %w", err)
	}
	var newest uint64 // of the other files
	for _, name := range names {
		if !isLog(name) {
			newest = max(newest, numberIn(name))
		}
	}
	for _, name := range names {
		if isLog(name) && fileNumber(name) > newest+logsAhead {
			foreign, err := isForeignLog(d, name)
			if err != nil {
				return fmt.Errorf("hapax: reading %s: %w", name, err)
			}
			if foreign {
				return fmt.Errorf("%w: %s in %s is not a log of the store: move it away", storage.ErrForeign, name, d.dir)
			}
		}
		d.ownLogs.note(name)
	}
	return nil
}

// logsAhead is how much the number of a log may exceed that of the newest table or MANIFEST. Each
// memtable has a log, and becomes a table.
const logsAhead = 1000

// isForeignLog reports whether a file begins with neither a chunk of a log nor zeros:
//
//	CRC u32 | size u16 | type u8 | ...
func isForeignLog(d *failStopFS, name string) (bool, error) {
	f, err := d.Open(d.path(name))
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // it was only read
	var header [7]byte
	n, err := io.ReadFull(f, header[:])
	if n == 0 {
		return false, nil // an empty log
	}
	const maxChunkType = 12
	return err != nil || header[6] > maxChunkType, nil
}
