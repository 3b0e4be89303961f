package filters

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A Store stores snapshots and the journal.
type Store interface {
	Identity() storage.Identity
	LastSeq() uint64
	Journal(from uint64, fn func(seq uint64, entry []byte) error) error
	TrimJournal(from uint64) error
	ReadSidecar(name string, read func(r io.Reader, size int64) error) error
	WriteSidecar(name string, write func(w io.Writer) error) error
}

// SnapshotOptions configure Snapshots.
type SnapshotOptions struct {
	Store   Store
	Durable func(seq uint64) bool           // waits until a batch is durable; returns false if the store has failed
	Go      func(func(ctx context.Context)) // runs a function in the background

	Every       uint64        // minimum number of claims between two snapshots; 0 = 1,048,576
	TrimAtClose uint64        // maximum number of journal entries that SaveLast removes; 0 = 131,072
	Retry       time.Duration // time between two attempts to write a snapshot; 0 = 1 minute
}

const (
	// defaultEvery is a minimum, see snapshotFraction: the interval grows with the store, because
	// each snapshot writes all filters.
	defaultEvery = 1 << 20
	// defaultTrimAtClose is bounded, because some stores need two syncs for a few hundred batches.
	defaultTrimAtClose = 1 << 17
	defaultRetry       = time.Minute
)

// Snapshots writes and loads snapshots of a Set, and tracks the contents of the two sidecars. Only
// the committer, Open and Close call its methods, except Status.
type Snapshots struct {
	filters *Set
	opt     SnapshotOptions
	since   uint64 // claims put since the start of the last snapshot
	source  string

	mu      sync.Mutex // guards the fields below; not held during I/O
	running bool
	seqs    [2]uint64 // batch of each sidecar, 0 if unusable
	lastErr error     // error of the last snapshot, nil if it was written
	failed  uint64

	retryAt atomic.Int64 // when to retry after a failure, in Unix nanoseconds; otherwise 0
}

// NewSnapshots returns the snapshots of a set.
func NewSnapshots(filters *Set, o SnapshotOptions) *Snapshots {
	o.Every = cmp.Or(o.Every, defaultEvery)
	o.TrimAtClose = cmp.Or(o.TrimAtClose, defaultTrimAtClose)
	o.Retry = cmp.Or(o.Retry, defaultRetry)
	return &Snapshots{filters: filters, opt: o}
}

// A Status describes snapshots.
type Status struct {
	// Source says where the filters came from at Load: "snapshot+journal", "journal" or "scan".
	Source string
	// OnDisk has the batches of the two snapshots on disk, 0 for a missing one.
	OnDisk  [2]uint64
	Running bool   // a snapshot is being written
	Failed  uint64 // number of snapshots that could not be written
	LastErr error  // error of the last snapshot, nil if it was written
}

// Status returns the current status. Any goroutine may call it.
func (s *Snapshots) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{s.source, s.seqs, s.running, s.failed, s.lastErr}
}

// Decided records that batch seq was decided, with the given number of claims, and starts a
// snapshot if one is due. Earlier batches were applied.
func (s *Snapshots) Decided(seq uint64, claims int) {
	s.since += uint64(claims) + 1 // the journal has an entry for each batch
	due := s.since >= max(s.opt.Every, s.filters.counts.claims/snapshotFraction) || s.retryDue()
	if !due || !s.filters.trusted.Load() || !s.begin() {
		return
	}
	s.since = 0
	cut := s.cut(seq)
	s.opt.Go(func(context.Context) { s.saveSnapshot(cut, true) })
}

func (s *Snapshots) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return false
	}
	s.running = true
	return true
}

// retryDue reports whether it is time to repeat a snapshot that could not be written.
func (s *Snapshots) retryDue() bool {
	at := s.retryAt.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// newest returns the batch of the newest snapshot on disk.
func (s *Snapshots) newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.seqs[0], s.seqs[1])
}

// cut returns a snapshot as of seq, the last batch. It copies the counts; the filters may get more
// hashes until they are written, which is harmless.
func (s *Snapshots) cut(seq uint64) *snapshot {
	return &snapshot{
		identity: s.opt.Store.Identity(), seq: seq,
		counts: s.filters.Counts(), filters: *s.filters.weeks.filters.Load(),
	}
}

// saveSnapshot waits until the contents are durable, so that no snapshot is ahead of its store,
// then writes the snapshot and, if trim is true, trims the journal. A failure costs only disk space
// and time at the next open: it is counted, the older snapshot and the later journal remain, and a
// batch after SnapshotOptions.Retry starts another snapshot.
func (s *Snapshots) saveSnapshot(cut *snapshot, trim bool) {
	err := errors.New("the store failed")
	if s.opt.Durable(cut.seq) {
		err = s.writeSnapshot(cut)
	}
	if err == nil && trim {
		err = s.trimJournal()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	s.lastErr = err
	s.retryAt.Store(0)
	if err != nil {
		s.failed++
		s.retryAt.Store(time.Now().Add(s.opt.Retry).UnixNano())
	}
}

func (s *Snapshots) writeSnapshot(cut *snapshot) error {
	s.mu.Lock()
	slot := 0
	if s.seqs[1] < s.seqs[0] {
		slot = 1
	}
	s.mu.Unlock()
	if err := s.opt.Store.WriteSidecar(snapshotNames[slot], cut.write); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seqs[slot] = cut.seq
	return nil
}

// trimJournal removes the journal entries that both snapshots include.
func (s *Snapshots) trimJournal() error {
	s.mu.Lock()
	older := min(s.seqs[0], s.seqs[1])
	s.mu.Unlock()
	if older == 0 {
		return nil
	}
	return s.opt.Store.TrimJournal(older + 1)
}

// SaveLast writes a snapshot of the last batch when the engine closes, and then removes the other
// one and the journal. These would serve if a crash tore the new snapshot, but it is durable before
// they are removed, and no batch follows. If it is damaged later, the next open scans the claims.
// If there was no batch since Open, SaveLast only writes a missing snapshot.
func (s *Snapshots) SaveLast(seq uint64) {
	if !s.filters.trusted.Load() {
		return
	}
	if s.newest() != seq {
		s.saveSnapshot(s.cut(seq), false)
	}
	s.mu.Lock()
	slot := slices.Index(s.seqs[:], seq)
	s.mu.Unlock()
	if seq == s.opt.Store.LastSeq() || slot < 0 || s.empty(snapshotNames[1-slot]) != nil {
		return
	}
	if first, err := s.firstJournaled(); err == nil && first > 0 && seq-first < s.opt.TrimAtClose {
		_ = s.opt.Store.TrimJournal(seq + 1) // after an error, the store's Close fails too
	}
}

// empty empties a sidecar, which then is no snapshot.
func (s *Snapshots) empty(name string) error {
	var held int64
	err := s.opt.Store.ReadSidecar(name, func(_ io.Reader, size int64) error {
		held = size
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && held == 0 {
		return nil
	}
	return s.opt.Store.WriteSidecar(name, func(io.Writer) error { return nil })
}

// firstJournaled returns the first batch in the journal, 0 if it is empty.
func (s *Snapshots) firstJournaled() (first uint64, err error) {
	err = s.opt.Store.Journal(0, func(seq uint64, _ []byte) error {
		first = seq
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return first, err
}

var errEnough = errors.New("enough")
