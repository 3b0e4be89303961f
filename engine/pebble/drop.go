package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
)

// Dropping is one range delete for each bucket, all in one synced batch, with a note for the claims
// that are not in tables yet: it costs the same for ten claims and for ten million. The space comes
// back later (Reclaim): Pebble deletes a table that lies wholly in a deleted range without reading
// it, and rewrites one that holds other buckets as well. Pebble's Excise is no quicker where tables
// lie wholly in a bucket, gives nothing back where they do not (it leaves virtual tables), and
// cannot be part of a batch.

// Drop implements storage.Store.
func (s *Store) Drop(buckets []storage.Bucket) error {
	if len(buckets) == 0 {
		return s.fault.get()
	}
	if err := s.raiseFormat(); err != nil {
		return err
	}
	spans := spansOf(buckets)
	s.ingest.Lock()
	defer s.ingest.Unlock()
	p := s.db.NewBatch()
	for _, span := range spans {
		must(p.DeleteRange(span.Start, span.End, nil))
	}
	prefixes := s.noteDrops(p, spans)
	if err := s.fault.write(func() error { return s.db.Apply(p, pebble.Sync) }); err != nil {
		return fmt.Errorf("hapax: dropping %d buckets: %w", len(buckets), err)
	}
	s.unsealed.drop(prefixes)
	s.spans.add(spans)
	return nil
}

// noteDrops adds to the batch that drops the spans what the next open has to know: which packed
// batches, all up to the newest one, have claims that are dropped. It returns the prefixes of the
// buckets that memory knows. The caller holds ingest.
func (s *Store) noteDrops(p *pebble.Batch, spans []pebble.KeyRange) (prefixes []string) {
	seq := s.unsealed.newest()
	for _, span := range spans {
		prefix := string(span.Start[1:])
		if !s.unsealed.knows(prefix) {
			continue
		}
		must(p.Set(spaced(dropSpace, span.Start[1:]), binary.BigEndian.AppendUint64(nil, seq), nil))
		s.dropNotes[prefix] = seq
		prefixes = append(prefixes, prefix)
	}
	return prefixes
}

// Reclaim implements storage.Store.
func (s *Store) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	spans := spansOf(buckets)
	if len(spans) == 0 {
		return s.fault.get()
	}
	// A tombstone in memory frees nothing.
	if err := s.fault.write(s.db.Flush); err != nil {
		return fmt.Errorf("hapax: flushing the removal of %d buckets: %w", len(buckets), err)
	}
	if err := s.settle(ctx, spans); err != nil {
		return err
	}
	runs, err := s.runs(spans)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if err := s.compact(ctx, run); err != nil {
			return err
		}
	}
	if err := s.gone(ctx); err != nil {
		return err
	}
	s.spans.remove(spans)
	return nil
}

// ReclaimState implements storage.Store. It compacts the range down to the last level: of what was
// removed or replaced before the call nothing is left in a table. A log that Pebble keeps for its
// next use has its old bytes until it is written over, or the store is opened again.
func (s *Store) ReclaimState(ctx context.Context, span storage.Span) error {
	run := pebble.KeyRange{Start: spaced(stateSpace, span.Prefix)}
	run.End = successor(run.Start)
	if err := s.fault.write(s.db.Flush); err != nil {
		return fmt.Errorf("hapax: flushing the memory table: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.compact(ctx, run); err != nil {
		return err
	}
	return s.gone(ctx)
}

const (
	// settleTime is how long Pebble may take to delete another table that lies wholly in a dropped
	// bucket.
	settleTime = time.Second
	settlePoll = 50 * time.Millisecond

	// gapBytes is how much that is not dropped may lie between two ranges that are rewritten
	// together: about a table.
	gapBytes = 8 << 20
)

// settle waits for Pebble to delete the tables that lie wholly in the spans, as long as it is worth
// it and they become fewer.
func (s *Store) settle(ctx context.Context, spans []pebble.KeyRange) error {
	least, end := uint64(math.MaxUint64), time.Now().Add(settleTime)
	for time.Now().Before(end) {
		held, err := s.held(spans)
		if err != nil || held < gapBytes {
			return err
		}
		if held < least {
			least, end = held, time.Now().Add(settleTime)
		}
		if err := sleep(ctx, settlePoll); err != nil {
			return err
		}
	}
	return nil
}

// held estimates the bytes of tables under the spans.
func (s *Store) held(spans []pebble.KeyRange) (sum uint64, err error) {
	for _, span := range spans {
		n, err := s.estimate(span)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (s *Store) estimate(span pebble.KeyRange) (n uint64, err error) {
	err = s.fault.read(func() (err error) {
		n, err = s.db.EstimateDiskUsage(span.Start, span.End)
		return asRead(err)
	})
	return n, err
}

// runs joins the spans that still hold space where little lies between them.
func (s *Store) runs(spans []pebble.KeyRange) (runs []pebble.KeyRange, err error) {
	for _, span := range spans {
		held, err := s.estimate(span)
		if err != nil {
			return nil, err
		}
		if held == 0 {
			continue
		}
		if n := len(runs); n > 0 {
			gap, err := s.estimate(pebble.KeyRange{Start: runs[n-1].End, End: span.Start})
			if err != nil {
				return nil, err
			}
			if gap < gapBytes {
				runs[n-1].End = span.End
				continue
			}
		}
		runs = append(runs, span)
	}
	return runs, nil
}

// compact rewrites what lies in a range, and rests as long as that took, so that flushes and the
// compactions that writing needs are not held up.
func (s *Store) compact(ctx context.Context, span pebble.KeyRange) error {
	begun := time.Now()
	err := s.fault.write(func() error { return s.db.Compact(ctx, span.Start, span.End, false) })
	if err != nil {
		return fmt.Errorf("hapax: reclaiming the space of what was dropped: %w", asRead(err))
	}
	return sleep(ctx, min(time.Since(begun), time.Second))
}

// gone waits until the files that nothing refers to any more are deleted.
func (s *Store) gone(ctx context.Context) error {
	for {
		waiting, err := s.waitingFiles()
		if err != nil || waiting == 0 {
			return err
		}
		if err := sleep(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// waitingFiles is the size of the tables that are no longer part of the store and not deleted yet:
// they wait for Pebble's next look, or for an iterator to be closed.
func (s *Store) waitingFiles() (n uint64, err error) {
	err = s.fault.read(func() error {
		t := s.db.Metrics().Table
		n = t.ZombieSize + t.ObsoleteSize
		return nil
	})
	return n, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// spansOf returns the buckets' ranges in order, each of them once.
func spansOf(buckets []storage.Bucket) []pebble.KeyRange {
	spans := make([]pebble.KeyRange, 0, len(buckets))
	for _, b := range buckets {
		spans = append(spans, bucketSpan(b))
	}
	slices.SortFunc(spans, func(a, b pebble.KeyRange) int { return bytes.Compare(a.Start, b.Start) })
	return slices.CompactFunc(spans, func(a, b pebble.KeyRange) bool { return bytes.Equal(a.Start, b.Start) })
}

// dropped remembers which ranges were dropped and not reclaimed since the store was opened.
type dropped struct {
	mu    sync.Mutex // guards spans
	spans map[string]pebble.KeyRange
}

func (d *dropped) add(spans []pebble.KeyRange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spans == nil {
		d.spans = make(map[string]pebble.KeyRange)
	}
	for _, span := range spans {
		d.spans[string(span.Start)] = span
	}
}

func (d *dropped) remove(spans []pebble.KeyRange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, span := range spans {
		delete(d.spans, string(span.Start))
	}
}

func (d *dropped) list() []pebble.KeyRange {
	d.mu.Lock()
	defer d.mu.Unlock()
	spans := make([]pebble.KeyRange, 0, len(d.spans))
	for _, span := range d.spans {
		spans = append(spans, span)
	}
	return spans
}
