package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
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
		s.source, after, s.screen.sizes = fromSnapshot, snap.seq, nil
		s.screen.adopt(snap.filters)
		for ref, c := range snap.counts {
			s.screen.merge(ref, c)
		}
	} else if first, err := first(); err != nil {
		return err
	} else if first == 1 || seq == 0 {
		s.source = fromJournal
	} else {
		s.source = fromScan
		if first == 0 { // it was trimmed
			return nil
		}
		return s.readJournalAfter(first-1, seq, func([]byte) error { return nil }) // to find a gap
	}
	if err := s.replayJournal(after, seq); err != nil {
		return err
	}
	s.screen.dropBefore(s.decideOld, s.oldestByNumber(s.names))
	s.screen.trusted.Store(true)
	return nil
}

// firstJournaled returns the first batch in the journal, 0 for none.
func (s *snapshots) firstJournaled() (first uint64, err error) {
	err = s.store.Journal(0, func(seq uint64, _ []byte) error {
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
	filling := startFilling(s.screen)
	defer filling.finish()
	return s.readJournalAfter(after, newest, func(entry []byte) error {
		return readJournal(entry, func(ref bucketRef, sign byte, hash uint64) {
			switch sign {
			case journalRemoved:
				s.screen.remove(ref, hash)
			case journalDropped:
				s.screen.forget(ref)
			default:
				filling.add(ref.week, hash)
				s.screen.put(ref, hash)
				s.since++
			}
		})
	})
}

// A filling adds hashes to filters that no other goroutine uses, in their order, in a goroutine of
// its own.
type filling struct {
	part  *fillingPart // what add adds to
	parts chan *fillingPart
	free  chan *fillingPart
	done  chan struct{}
}

// A fillingPart has the hashes of consecutive runs, each of one week.
type fillingPart struct {
	hashes []uint64
	runs   []fillingRun
}

type fillingRun struct {
	week weekbucket.Week
	end  int // of its hashes
}

const fillingHashes = 1 << 15 // handed over at once

func startFilling(s *screen) *filling {
	f := &filling{
		part: &fillingPart{}, parts: make(chan *fillingPart), free: make(chan *fillingPart, 2), done: make(chan struct{}),
	}
	f.free <- &fillingPart{}
	go func() {
		defer close(f.done)
		for part := range f.parts {
			at := 0
			for _, run := range part.runs {
				s.filter(run.week).AddAll(part.hashes[at:run.end])
				at = run.end
			}
			f.free <- part
		}
	}()
	return f
}

func (f *filling) add(week weekbucket.Week, hash uint64) {
	p := f.part
	p.hashes = append(p.hashes, hash)
	if n := len(p.runs); n > 0 && p.runs[n-1].week == week {
		p.runs[n-1].end++
	} else {
		p.runs = append(p.runs, fillingRun{week, len(p.hashes)})
	}
	if len(p.hashes) == fillingHashes {
		f.parts <- p
		f.part = <-f.free
		f.part.hashes, f.part.runs = f.part.hashes[:0], f.part.runs[:0]
	}
}

// finish returns when all hashes are in the filters.
func (f *filling) finish() {
	f.parts <- f.part
	close(f.parts)
	<-f.done
}

// readJournalAfter calls fn with the entry of each batch after the given one. A gap, or an end
// before the newest batch, means that acknowledged batches are missing.
func (s *snapshots) readJournalAfter(after, newest uint64, fn func(entry []byte) error) error {
	if after == newest {
		return nil
	}
	last := after
	err := s.store.Journal(after+1, func(seq uint64, entry []byte) error {
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
// claims; counts add up, and a filter may contain a claim twice.
func (s *snapshots) rebuild(ctx context.Context) {
	counts := make(map[bucketRef]count)
	err := s.scanner.beginScan(ctx, func() { s.screen.reset() }, func(c scanned) error {
		s.screen.filter(c.ref.week).Add(c.hash)
		s.screen.rebuilt.Add(1)
		n := counts[c.ref]
		counts[c.ref] = count{n.claims + 1, n.xor ^ c.hash}
		return nil
	})
	if err == nil {
		err = s.scanner.control(ctx, func(*group) error {
			for ref, c := range counts {
				s.screen.merge(ref, c)
			}
			s.screen.dropBefore(s.decideOld, s.oldestByNumber(s.names))
			s.screen.sizes = nil
			s.screen.trusted.Store(true)
			s.since = max(s.screen.claims, s.opt.snapshotEvery) // the next batch makes a snapshot
			return nil
		})
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		_ = s.stop(err)
	}
}
