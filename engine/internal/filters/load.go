package filters

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The values of Status.Source.
const (
	fromSnapshot = "snapshot+journal"
	fromJournal  = "journal"
	fromScan     = "scan"
)

// Load reads filters and counts from a snapshot and the later journal. If it returns nil and the
// filters are not trusted, they must be rebuilt. seq is the last batch. The caller must drop the
// weeks that are not retained.
func (s *Snapshots) Load(seq uint64) error {
	first := sync.OnceValues(s.firstJournaled)
	snap, err := s.loadSnapshot(first)
	if err != nil {
		return err
	}
	after := uint64(0)
	if snap != nil {
		s.source, after, s.filters.weeks.sizes = fromSnapshot, snap.seq, nil
		s.filters.weeks.adopt(snap.filters)
		for b, c := range snap.counts {
			s.filters.counts.merge(b, c)
		}
	} else if first, err := first(); err != nil {
		return err
	} else if first == 1 || seq == 0 {
		s.source = fromJournal
	} else {
		s.source = fromScan
		if first == 0 { // the journal was trimmed
			return nil
		}
		return s.readJournalAfter(first-1, seq, func([]byte) error { return nil }) // to find a gap
	}
	if err := s.replayJournal(after, seq); err != nil {
		return err
	}
	s.filters.trusted.Store(true)
	return nil
}

// A savedSnapshot is a snapshot in a sidecar whose filters are not read yet.
type savedSnapshot struct {
	snapshot *snapshot
	slot     int
	weeks    []weekbucket.Week
	body     int64 // size of the filters, which are at the end of the sidecar
}

// loadSnapshot returns the newest usable snapshot of this store from which the journal continues to
// the last batch. It returns nil if there is none, or if the snapshot was limited by a smaller
// MaxFilterBytes. first returns the first batch in the journal, 0 if it is empty. A snapshot that
// is ahead of the store proves that the store has lost acknowledged batches.
//
// It reads the filters of only one snapshot, unless they are damaged. The other snapshot is
// replaced first, whatever its contents.
func (s *Snapshots) loadSnapshot(first func() (uint64, error)) (*snapshot, error) {
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

// readUsable reads the filters of a snapshot and reports whether it is usable.
func (s *Snapshots) readUsable(saved savedSnapshot, first func() (uint64, error)) (bool, error) {
	if saved.snapshot.seq < s.opt.Store.LastSeq() {
		if first, err := first(); err != nil || first == 0 || first > saved.snapshot.seq+1 {
			return false, err
		}
	}
	if err := s.readFilters(saved); errors.Is(err, errUnusable) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if saved.snapshot.outgrown(s.filters.weeks.budget) { // ignored, so that Close writes another one
		s.filters.weeks.sizes = saved.snapshot.sizes()
		return false, nil
	}
	return true, nil
}

// findSnapshots returns the snapshots of this store, newest first.
func (s *Snapshots) findSnapshots() ([]savedSnapshot, error) {
	var found []savedSnapshot
	for slot, name := range snapshotNames {
		saved := savedSnapshot{slot: slot}
		err := s.opt.Store.ReadSidecar(name, func(r io.Reader, size int64) (err error) {
			saved.snapshot, saved.weeks, saved.body, err = readSnapshotHeader(r, size)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errUnusable) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if id := s.opt.Store.Identity(); saved.snapshot.identity.UUID != id.UUID || saved.snapshot.identity.Incarnation != id.Incarnation {
			continue
		}
		if last := s.opt.Store.LastSeq(); saved.snapshot.seq > last {
			return nil, fmt.Errorf("%w: it ends with batch %d, but batch %d was durable", storage.ErrDamaged, last, saved.snapshot.seq)
		}
		found = append(found, saved)
	}
	slices.SortFunc(found, func(a, b savedSnapshot) int { return cmp.Compare(b.snapshot.seq, a.snapshot.seq) })
	return found, nil
}

// readFilters reads the filters of a snapshot whose header has been read.
func (s *Snapshots) readFilters(saved savedSnapshot) error {
	return s.opt.Store.ReadSidecar(snapshotNames[saved.slot], func(r io.Reader, size int64) error {
		if _, err := io.CopyN(io.Discard, r, size-saved.body); err != nil {
			return err
		}
		return saved.snapshot.readFilters(r, saved.weeks, saved.body, s.filters.weeks.growerOf)
	})
}

// outgrown reports whether the filters must be rebuilt for the given budget: because one was
// saturated or evicted under a smaller budget, or that of the latest week exceeds the budget and
// would be evicted.
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
	for b, c := range s.counts {
		sizes[b.Week] += c.Claims
	}
	return sizes
}
