package pebble

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storage/sidecar"
	"github.com/hapax-dev/hapax/engine/storage/storedir"
)

const (
	// reserveBytes is the minimum size of the reserve, for the files that Open always writes.
	reserveBytes = 4 << 20

	// dropBytes is how much a new reserve leaves free: more than a drop writes.
	dropBytes = 1 << 20

	// The reserve exceeds the size of a log by the log's size again, within these bounds.
	minAhead = 64 << 10
	maxAhead = 1 << 20

	// batchBytes is the approximate minimum size of a batch in the log.
	batchBytes = 128

	// removalBytes is the maximum size of all batches that remove state after an Open without a
	// reserve.
	removalBytes = 256 << 10

	// freeingTime is how long claims wait until space is freed.
	freeingTime = 2 * time.Second
)

// A reserve is a file that reserves disk space. Open writes the claims of the log to tables, which
// do not fit on a full disk: it then removes the reserve and tries again. So the reserve has
// reserveBytes and the size of the logs that Open may find. It grows before they do; if it cannot
// grow, the store fails while there is still enough space to open it again. A clean close leaves
// reserveBytes.
//
// While a store is open without a reserve, it accepts only drops of weeks and some removals of
// state: claims or other state would fill the disk again.
type reserve struct {
	dir *storedir.Dir // nil if there is no reserve: only the machine's file system has one

	short   atomic.Bool // it could not be created after Open
	removed int         // size of the batches accepted meanwhile; used by Apply

	mu    sync.Mutex // guards the fields below
	begun bool       // the store is open
	file  *os.File   // nil if there was no space for it yet, and after close
	size  int64
	logs  []*atomic.Int64 // ends of the logs that are not completely in tables, in order; 0 before the first write
}

// newLog adds a new log, and returns the variable for its end.
func (r *reserve) newLog() *atomic.Int64 {
	log := new(atomic.Int64)
	if r.dir == nil {
		return log
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = append(r.logs, log)
	return log
}

// forgetLogs forgets the oldest logs, which are in tables. live returns the number of other logs;
// it may omit a new log to which nothing was written.
func (r *reserve) forgetLogs(live func() (int, error)) {
	r.mu.Lock()
	written := len(r.logs)
	for written > 0 && r.logs[written-1].Load() == 0 {
		written--
	}
	r.mu.Unlock()
	n, err := live()
	if err != nil || n >= written {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = slices.Delete(r.logs, 0, min(written-n, len(r.logs)))
}

// need returns the required size of the reserve. The caller holds mu.
func (r *reserve) need() int64 {
	n := int64(reserveBytes)
	for _, log := range r.logs {
		n += log.Load()
	}
	return n
}

// begin opens the file after the store was opened, and grows it to the required size. It logs an
// error.
func (r *reserve) begin(log *slog.Logger) {
	if r.dir == nil {
		return
	}
	r.mu.Lock()
	r.begun = true
	r.mu.Unlock()
	switch err := r.restore(); {
	case sidecar.NoSpace(err):
		log.Warn("hapax: the store has no reserve, and accepts drops and removals only until there is room for it", "err", err)
	case err != nil:
		log.Warn("hapax: the store has no reserve: it may not open once its disk is full", "err", err)
	}
}

// open opens or creates the file. It replaces a copy with holes, which reserves no space. The
// caller holds mu.
func (r *reserve) open() error {
	f, err := r.dir.OpenFile(reserveName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && allocated(info) < info.Size() {
		if err := errors.Join(f.Close(), r.dir.Remove(reserveName)); err != nil {
			return err
		}
		r.file, err = r.dir.OpenFile(reserveName, os.O_RDWR|os.O_CREATE)
		return err
	}
	r.file = f
	if err == nil {
		r.size = info.Size()
	}
	return nil
}

// missing returns how much the file must grow, and whether n bytes are free in addition to that and
// to the space for a drop. The caller holds mu.
func (r *reserve) missing(n int64) (more int64, free bool) {
	more = max(r.need()-r.size, 0)
	usage, err := vfs.Default.GetDiskUsage(r.dir.Path())
	return more, err != nil || usage.AvailBytes >= uint64(n+more+dropBytes)
}

// leaves reports whether n bytes can be allocated without using the space of the reserve.
func (r *reserve) leaves(n int64) bool {
	if r.dir == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, free := r.missing(n)
	return free
}

// restore grows the reserve to the required size, if dropBytes remain free.
func (r *reserve) restore() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun {
		return nil
	}
	if r.file == nil {
		if err := r.open(); err != nil {
			r.short.Store(sidecar.NoSpace(err))
			return err
		}
	}
	if more, free := r.missing(0); more > 0 && !free {
		r.short.Store(true)
		return fmt.Errorf("hapax: the disk of %s is full, and with less than %d MiB of free space no claims and no new state are accepted: drop a week, or make room: %w",
			r.dir.Path(), (more+dropBytes+1<<20-1)>>20, errNoSpace)
	}
	err := r.grow()
	r.short.Store(err != nil)
	return err
}

// admit returns an error if a batch cannot be applied, because there is no reserve and the batch
// needs space.
func (r *reserve) admit(b *storage.Batch) error {
	if !r.short.Load() || b.Control && len(b.Claims) == 0 {
		return nil
	}
	if n := removalSize(b); n > 0 && r.removed+n <= removalBytes {
		r.removed += n
		return nil
	}
	return r.await()
}

// removalSize returns the approximate size of a batch that removes at least as many state keys as
// it puts, and 0 for any other batch.
func removalSize(b *storage.Batch) int {
	n, removals := len(b.Journal), 0
	for i := range b.State {
		w := &b.State[i]
		n += len(w.Key) + len(w.Value)
		if w.Value == nil {
			removals++
		}
	}
	if len(b.Claims) > 0 || 2*removals < len(b.State) {
		return 0
	}
	return n + batchBytes
}

// await waits for the reserve before claims are written, because Pebble may still be removing old
// logs and tables.
func (r *reserve) await() (err error) {
	if !r.short.Load() {
		return nil
	}
	for end := time.Now().Add(freeingTime); ; time.Sleep(freeingTime / 40) {
		if err = r.restore(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// logGrows grows the reserve before a log grows.
func (r *reserve) logGrows(log *atomic.Int64, end int64) error {
	log.Store(end + min(max(end, minAhead), maxAhead))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil || r.short.Load() {
		return nil
	}
	if err := r.grow(); err != nil {
		return fmt.Errorf("the disk is full but for %d MiB, with which the store can be opened again: %w", r.size>>20, err)
	}
	return nil
}

// grow grows the file to the required size. If the file system does not support that, there is no
// reserve. The caller holds mu.
func (r *reserve) grow() error {
	need := r.need()
	if need <= r.size {
		return nil
	}
	err := allocate(r.file, r.size, need-r.size)
	if err != nil && !sidecar.NoSpace(err) {
		err = writeRandom(r.file, r.size, need-r.size)
	}
	if err == nil {
		r.size = need
	} else if !sidecar.NoSpace(err) {
		err = nil
	}
	return err
}

// writeRandom writes bytes that no file system can compress.
func writeRandom(f *os.File, offset, n int64) error {
	random, buf := rand.NewChaCha8([32]byte{}), make([]byte, 256<<10)
	for end := offset + n; offset < end; offset += int64(len(buf)) {
		_, _ = random.Read(buf) // never returns an error
		if _, err := f.WriteAt(buf[:min(int64(len(buf)), end-offset)], offset); err != nil {
			return err
		}
	}
	return nil
}

// shrink reduces the reserve to the size for a closed store.
func (r *reserve) shrink() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = nil
	if r.file != nil && r.size > reserveBytes && r.file.Truncate(reserveBytes) == nil {
		r.size = reserveBytes
	}
}

func (r *reserve) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = false
	if r.file != nil {
		_ = r.file.Close() // the file has no data
		r.file = nil
	}
}

// giveUp removes the file of a store that could not be opened, and reports whether there was one.
// It bypasses the failStopFS, which discards changes.
func (r *reserve) giveUp() bool {
	return r.dir != nil && r.dir.Remove(reserveName) == nil
}
