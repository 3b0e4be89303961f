package filters

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
)

// replayJournal applies the journal entries after the given batch. After a clean close there are
// none, and it does not read the journal.
func (s *Snapshots) replayJournal(after, newest uint64) error {
	counts, filling := &s.filters.counts, startFilling(&s.filters.weeks)
	defer filling.finish()
	var removed []uint64
	return s.readJournalAfter(after, newest, func(entry []byte) error {
		return readEntry(entry, func(id runID, hashes []byte) {
			n := uint64(len(hashes) / 8)
			switch id.sign {
			case signRemoved:
				removed = appendHashes(removed[:0], hashes)
				counts.merge(id.bucket, Count{-n, xor(removed)})
			case signDropped:
				counts.forget(id.bucket)
			default:
				counts.merge(id.bucket, Count{n, xor(filling.add(id.bucket.Week, hashes))})
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

// readJournalAfter calls fn with the entry of each batch after the given one. It returns an error
// if batches up to the newest one are missing, because these were acknowledged.
func (s *Snapshots) readJournalAfter(after, newest uint64, fn func(entry []byte) error) error {
	if after == newest {
		return nil
	}
	last := after
	err := s.opt.Store.Journal(after+1, func(seq uint64, entry []byte) error {
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
