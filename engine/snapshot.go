package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// snapshots writes and loads snapshots of the filters, and tracks the contents of the two sidecars.
type snapshots struct {
	core    *core
	finder  *finder
	scanner *scanner
	since   uint64 // claims put since the last snapshot was begun; the committer's
	source  string

	mu      sync.Mutex // guards all below; no I/O under it
	running bool
	seqs    [2]uint64 // by sidecar, 0 = unusable
	lastErr error     // of the last snapshot, nil if it was written
	failed  uint64

	retryAt atomic.Int64 // after a failure: when to retry, in Unix nanoseconds; otherwise 0
}

// maybeSnapshot begins a snapshot if one is due. seq is the last batch that was decided. The
// committer calls it after a batch was applied.
func (s *snapshots) maybeSnapshot(seq uint64) {
	due := s.since >= max(s.core.opt.snapshotEvery, s.finder.filters.claims/snapshotFraction) || s.retryDue()
	if !due || !s.finder.filters.trusted.Load() || s.core.Err() != nil {
		return
	}
	if !s.begin() {
		return
	}
	s.since = 0
	cut := s.cut(seq)
	s.core.goBehind(func(context.Context) { s.saveSnapshot(cut, true) })
}

func (s *snapshots) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return false
	}
	s.running = true
	return true
}

// retryDue reports whether it is time to repeat a snapshot that could not be written.
func (s *snapshots) retryDue() bool {
	at := s.retryAt.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// failures returns how many snapshots could not be written, and the error of the last one, nil if
// it was written.
func (s *snapshots) failures() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed, s.lastErr
}

// newest returns the batch up to which the newest snapshot on disk is complete.
func (s *snapshots) newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.seqs[0], s.seqs[1])
}

// cut copies the counts as of seq, which is the last batch. The filters may get more hashes
// meanwhile, which is harmless.
func (s *snapshots) cut(seq uint64) *snapshot {
	return &snapshot{
		identity: s.core.store.Identity(), seq: seq,
		counts: s.finder.filters.copyCounts(), filters: *s.finder.filters.filters.Load(),
	}
}

// saveSnapshot writes a snapshot when its contents are durable, so that no snapshot is ever ahead
// of its store, and trims the journal if asked to. A failure costs only disk space and time at the
// next open: it is counted, the older snapshot and the journal after it remain, and a batch after
// snapshotRetry begins another snapshot.
func (s *snapshots) saveSnapshot(cut *snapshot, trim bool) {
	err := errors.New("the store failed")
	if s.core.durable.wait(cut.seq) {
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
		s.retryAt.Store(time.Now().Add(s.core.opt.snapshotRetry).UnixNano())
	}
}

func (s *snapshots) writeSnapshot(cut *snapshot) error {
	s.mu.Lock()
	slot := 0
	if s.seqs[1] < s.seqs[0] {
		slot = 1
	}
	s.mu.Unlock()
	if err := s.core.store.WriteSidecar(snapshotNames[slot], cut.write); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seqs[slot] = cut.seq
	return nil
}

// trimJournal removes what both snapshots contain from the journal.
func (s *snapshots) trimJournal() error {
	s.mu.Lock()
	kept := min(s.seqs[0], s.seqs[1])
	s.mu.Unlock()
	if kept == 0 {
		return nil
	}
	return s.core.store.TrimJournal(kept + 1)
}

// saveLast leaves one snapshot, of the last batch, when the engine closes. The other one and the
// journal after it would replace a snapshot that a crash tears, but this one is durable before they
// are removed, and no batch follows. If it is damaged later, the next open scans the claims. If
// there was no batch since the engine was opened, only a missing snapshot is written.
func (s *snapshots) saveLast(seq uint64) {
	if s.newest() != seq {
		s.saveSnapshot(s.cut(seq), false)
	}
	s.mu.Lock()
	slot := slices.Index(s.seqs[:], seq)
	s.mu.Unlock()
	if seq == s.core.store.LastSeq() || slot < 0 || s.empty(snapshotNames[1-slot]) != nil {
		return
	}
	if first, err := s.firstJournaled(); err == nil && first > 0 && seq-first < s.core.opt.trimAtClose {
		_ = s.core.store.TrimJournal(seq + 1) // if it failed, so does the store's Close
	}
}

// empty empties a sidecar. One without content is no snapshot.
func (s *snapshots) empty(name string) error {
	var held int64
	err := s.core.store.ReadSidecar(name, func(_ io.Reader, size int64) error {
		held = size
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && held == 0 {
		return nil
	}
	return s.core.store.WriteSidecar(name, func(io.Writer) error { return nil })
}

// outgrown reports whether a filter was saturated or evicted under a smaller budget, or that of the
// latest week is larger than the budget and would be evicted: it would answer "maybe" forever, so
// all must be rebuilt.
func (s *snapshot) outgrown(budget uint64) bool {
	var latest weekbucket.Week
	for week, f := range s.filters {
		if f.MaxBytes() < budget && (f.Saturated() || f.ContainsAll()) {
			return true
		}
		latest = max(latest, week)
	}
	f := s.filters[latest]
	return f != nil && heldBytes(f) > budget
}

// sizes returns the number of claims of each week.
func (s *snapshot) sizes() map[weekbucket.Week]uint64 {
	sizes := make(map[weekbucket.Week]uint64)
	for ref, c := range s.counts {
		sizes[ref.week] += c.claims
	}
	return sizes
}

// A savedSnapshot is a snapshot that was found in a sidecar. Its filters are not read yet.
type savedSnapshot struct {
	snapshot *snapshot
	slot     int
	weeks    []weekbucket.Week
	body     int64 // the last bytes of the sidecar are the filters
}

// loadSnapshot returns the newest usable snapshot of this store from which the journal continues to
// the last batch; nil if there is none, or MaxFilterBytes was raised for a filter that needs it.
// first returns the first batch that the journal still has, 0 for none. A snapshot that is ahead of
// the store proves that the store has lost acknowledged batches.
//
// It reads the filters of one snapshot only, unless they are damaged. The other one is the first to
// be replaced, whatever its contents.
func (s *snapshots) loadSnapshot(first func() (uint64, error)) (*snapshot, error) {
	found, err := s.findSnapshots()
	if err != nil {
		return nil, err
	}
	var newest *snapshot
	for _, saved := range found {
		if newest == nil {
			usable, err := s.readUsable(saved, first)
			if err != nil {
				return nil, err
			}
			if !usable {
				continue
			}
			newest = saved.snapshot
		}
		s.seqs[saved.slot] = saved.snapshot.seq
	}
	return newest, nil
}

// readUsable reads the filters of a snapshot, if it is usable.
func (s *snapshots) readUsable(saved savedSnapshot, first func() (uint64, error)) (bool, error) {
	if saved.snapshot.seq < s.core.store.LastSeq() {
		if first, err := first(); err != nil || first == 0 || first > saved.snapshot.seq+1 {
			return false, err
		}
	}
	if err := s.readFilters(saved); errors.Is(err, errUnusable) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if saved.snapshot.outgrown(s.finder.filters.budget) { // it is ignored, so that Close writes another one
		s.finder.filters.sizes = saved.snapshot.sizes()
		return false, nil
	}
	return true, nil
}

// findSnapshots returns the snapshots of this store, the newest first.
func (s *snapshots) findSnapshots() ([]savedSnapshot, error) {
	var found []savedSnapshot
	for slot, name := range snapshotNames {
		saved := savedSnapshot{slot: slot}
		err := s.core.store.ReadSidecar(name, func(r io.Reader, size int64) (err error) {
			saved.snapshot, saved.weeks, saved.body, err = readSnapshotHeader(r, size)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errUnusable) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if id := s.core.store.Identity(); saved.snapshot.identity.UUID != id.UUID || saved.snapshot.identity.Incarnation != id.Incarnation {
			continue
		}
		if last := s.core.store.LastSeq(); saved.snapshot.seq > last {
			return nil, fmt.Errorf("%w: it ends with batch %d, but batch %d was durable", storage.ErrDamaged, last, saved.snapshot.seq)
		}
		found = append(found, saved)
	}
	slices.SortFunc(found, func(a, b savedSnapshot) int { return cmp.Compare(b.snapshot.seq, a.snapshot.seq) })
	return found, nil
}

// readFilters reads the filters of a snapshot whose header was read before.
func (s *snapshots) readFilters(saved savedSnapshot) error {
	return s.core.store.ReadSidecar(snapshotNames[saved.slot], func(r io.Reader, size int64) error {
		if _, err := io.CopyN(io.Discard, r, size-saved.body); err != nil {
			return err
		}
		return saved.snapshot.readFilters(r, saved.weeks, saved.body, s.finder.filters.growerOf)
	})
}
