package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// load reads filters and counts from a snapshot and the journal after it, or leaves them to be
// rebuilt. seq is the last batch.
func (s *snapshots) load(seq uint64) error {
	first := sync.OnceValues(s.firstJournaled)
	snap, err := s.loadSnapshot(first)
	if err != nil {
		return err
	}
	after := uint64(0)
	if snap != nil {
		s.source, after, s.finder.filters.sizes = fromSnapshot, snap.seq, nil
		s.finder.filters.adopt(snap.filters)
		for ref, c := range snap.counts {
			s.finder.filters.merge(ref, c)
		}
	} else if first, err := first(); err != nil {
		return err
	} else if first == 1 || seq == 0 {
		s.source = fromJournal
	} else {
		s.source = fromScan
		if err := s.noteWeeks(); err != nil {
			return err
		}
		if first == 0 { // it was trimmed
			return nil
		}
		return s.readJournalAfter(first-1, seq, func([]byte) error { return nil }) // to find a gap
	}
	if err := s.replayJournal(after, seq); err != nil {
		return err
	}
	s.finder.filters.dropBefore(s.finder.retained.decideOld, s.finder.retained.oldestByNumber(s.finder.names))
	s.finder.filters.trusted.Store(true)
	return nil
}

// noteWeeks notes the weeks with claims for the time until the filters are rebuilt.
func (s *snapshots) noteWeeks() error {
	weeks := make(weekSet)
	err := s.core.store.Buckets(func(b storage.Bucket) error {
		weeks[b.Week] = struct{}{}
		return nil
	})
	var damage *storage.DamageError
	if errors.As(err, &damage) && s.finder.names.legacy == nil {
		s.finder.names.bucketsIn(damage, func(b storage.Bucket) { weeks[b.Week] = struct{}{} })
		err = nil
	}
	s.finder.filters.stored.Store(&weeks)
	return err
}

// firstJournaled returns the first batch in the journal, 0 for none.
func (s *snapshots) firstJournaled() (first uint64, err error) {
	err = s.core.store.Journal(0, func(seq uint64, _ []byte) error {
		first = seq
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return first, err
}

// replayJournal applies the journal's batches after the given one. After a clean close there are
// none, and the journal is not read.
func (s *snapshots) replayJournal(after, newest uint64) error {
	filling := startFilling(s.finder.filters)
	defer filling.finish()
	var removed []uint64
	return s.readJournalAfter(after, newest, func(entry []byte) error {
		return readJournal(entry, func(id runID, hashes []byte) {
			n := uint64(len(hashes) / 8)
			switch id.sign {
			case journalRemoved:
				removed = appendHashes(removed[:0], hashes)
				s.finder.filters.merge(id.bucketRef, count{-n, xor(removed)})
			case journalDropped:
				s.finder.filters.forget(id.bucketRef)
			default:
				s.finder.filters.merge(id.bucketRef, count{n, xor(filling.add(id.bucketRef.week, hashes))})
				s.since += n
			}
		})
	})
}

func xor(hashes []uint64) (x uint64) {
	for _, h := range hashes {
		x ^= h
	}
	return x
}

// readJournalAfter calls fn with the entry of each batch after the given one. A gap, or an end
// before the newest batch, means that acknowledged batches are missing.
func (s *snapshots) readJournalAfter(after, newest uint64, fn func(entry []byte) error) error {
	if after == newest {
		return nil
	}
	last := after
	err := s.core.store.Journal(after+1, func(seq uint64, entry []byte) error {
		if seq != last+1 {
			return fmt.Errorf("%w: batch %d is followed by batch %d", storage.ErrDamaged, last, seq)
		}
		last = seq
		return fn(entry)
	})
	if err == nil && last != newest {
		err = fmt.Errorf("%w: the journal ends with batch %d, the store with %d", storage.ErrDamaged, last, newest)
	}
	return err
}

// rebuild fills filters and counts from a scan of the claims at its start. The committer adds later
// claims; counts add up, and a filter may contain a claim twice. If it meets damage, the filters
// remain untrusted: every event reads the store, which tells those apart that may be in the damage.
func (s *snapshots) rebuild(ctx context.Context) {
	counts := make(map[bucketRef]count)
	err := s.scanner.beginScan(ctx, func() { s.finder.filters.reset() }, func(c scanned) error {
		s.finder.filters.filter(c.ref.week).Add(c.hash)
		s.finder.filters.rebuilt.Add(1)
		n := counts[c.ref]
		counts[c.ref] = count{n.claims + 1, n.xor ^ c.hash}
		return nil
	})
	if err == nil {
		err = s.scanner.queue.control(ctx, func(*group) error {
			for ref, c := range counts {
				s.finder.filters.merge(ref, c)
			}
			s.finder.filters.dropBefore(s.finder.retained.decideOld, s.finder.retained.oldestByNumber(s.finder.names))
			s.finder.filters.sizes = nil
			s.finder.filters.trusted.Store(true)
			s.since = max(s.finder.filters.claims, s.core.opt.snapshotEvery) // the next batch makes a snapshot
			return nil
		})
	}
	var damage *storage.DamageError
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed):
	case errors.As(err, &damage):
		s.finder.filters.damage.Store(damage)
	default:
		_ = s.core.stop(err)
	}
}

// rebuildAgain rebuilds the filters if that met damage before, which may be gone. The caller is one of
// goBehind.
func (s *snapshots) rebuildAgain() {
	if s.finder.filters.damage.Swap(nil) != nil {
		s.core.goBehind(s.rebuild)
	}
}
