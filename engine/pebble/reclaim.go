package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/hapax-dev/hapax/engine/pebble/internal/runs"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/wait"
)

// A reclaimer frees the space of dropped data.
type reclaimer struct {
	core  *core
	spans dropped
}

func (r *reclaimer) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	spans := spansOf(buckets)
	if len(spans) == 0 {
		return r.core.fault.get()
	}
	r.core.startup.end()
	// A tombstone in memory frees nothing.
	if err := r.core.fault.write(r.core.db.Flush); err != nil {
		return fmt.Errorf("hapax: flushing the removal of %d buckets: %w", len(buckets), err)
	}
	err := r.cutOut(ctx, spans)
	if err == nil {
		err = r.rewrite(ctx, spans)
	}
	if errors.As(err, new(*storage.DamageError)) {
		if err = r.cutOut(ctx, spans); err == nil {
			err = r.rewrite(ctx, spans)
		}
	}
	if err != nil {
		return err
	}
	if err := r.gone(ctx); err != nil {
		return err
	}
	r.spans.remove(spans)
	if r.core.disk.reserve.short.Load() {
		_ = r.core.disk.reserve.restore() // claims wait for it
	}
	return nil
}

// rewrite rewrites the tables that hold dropped data beside other data.
func (r *reclaimer) rewrite(ctx context.Context, spans []pebble.KeyRange) error {
	if err := r.settle(ctx, spans); err != nil {
		return err
	}
	all, err := r.runs(spans)
	if err != nil {
		return err
	}
	for _, run := range all {
		if err := r.compact(ctx, run); err != nil {
			return err
		}
	}
	return nil
}

// cutOut removes dropped ranges from damaged tables, which cannot be rewritten. A table that lies in
// such a range is removed unread; of another one the rest becomes a virtual table, which does not
// contain damage in the range. For that, the blocks at the ends of the range and the table's index are
// read: damage there remains, and is the error.
func (r *reclaimer) cutOut(ctx context.Context, spans []pebble.KeyRange) error {
	adjacent := func(end, start []byte) bool { return bytes.Compare(end, start) < 0 }
	for _, span := range runs.Joined(spans, adjacent) {
		if !r.core.disk.damages.in(span) {
			continue
		}
		if err := r.core.fault.write(func() error { return r.core.db.Excise(ctx, span) }); err != nil {
			return fmt.Errorf("hapax: removing damage from what was dropped: %w", asRead(err))
		}
		left, err := readValue(r.core.fault, func() ([][]pebble.SSTableInfo, error) {
			return r.core.db.SSTables(pebble.WithKeyRangeFilter([]byte{claimSpace}, []byte{claimSpace + 1}))
		})
		if err != nil {
			return fmt.Errorf("hapax: listing what is left of damaged tables: %w", asRead(err))
		}
		r.core.disk.damages.cut(span, left)
	}
	return nil
}

func (r *reclaimer) ReclaimState(ctx context.Context, span storage.Span) error {
	run := pebble.KeyRange{Start: spaced(stateSpace, span.Prefix)}
	run.End = successor(run.Start)
	r.core.startup.end()
	if err := r.core.fault.write(r.core.db.Flush); err != nil {
		return fmt.Errorf("hapax: flushing the memory table: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.compact(ctx, run); err != nil {
		return err
	}
	return r.gone(ctx)
}

const (
	// settleTime is how long Pebble may take to delete another table that is entirely in a dropped
	// bucket.
	settleTime = time.Second
	settlePoll = 50 * time.Millisecond

	// gapBytes is the maximum size of undropped data between two ranges that are rewritten
	// together: about a table.
	gapBytes = 8 << 20
)

// settle waits for Pebble to delete the tables that are entirely in the spans, as long as their
// number decreases.
func (r *reclaimer) settle(ctx context.Context, spans []pebble.KeyRange) error {
	least, end := uint64(math.MaxUint64), time.Now().Add(settleTime)
	for time.Now().Before(end) {
		held, err := r.held(spans)
		if err != nil || held < gapBytes {
			return err
		}
		if held < least {
			least, end = held, time.Now().Add(settleTime)
		}
		if err := wait.For(ctx, settlePoll); err != nil {
			return err
		}
	}
	return nil
}

// held estimates the bytes of tables under the spans.
func (r *reclaimer) held(spans []pebble.KeyRange) (sum uint64, err error) {
	for _, span := range spans {
		n, err := r.estimate(span)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (r *reclaimer) estimate(span pebble.KeyRange) (uint64, error) {
	return readValue(r.core.fault, func() (uint64, error) {
		n, err := r.core.db.EstimateDiskUsage(span.Start, span.End)
		return n, asRead(err)
	})
}

// runs joins the spans that still occupy space if little lies between them.
func (r *reclaimer) runs(spans []pebble.KeyRange) (runs []pebble.KeyRange, err error) {
	for _, span := range spans {
		held, err := r.estimate(span)
		if err != nil {
			return nil, err
		}
		if held == 0 {
			continue
		}
		if n := len(runs); n > 0 {
			gap, err := r.estimate(pebble.KeyRange{Start: runs[n-1].End, End: span.Start})
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

// compact rewrites the tables in a range, and pauses for as long as that took, so that flushes and
// the compactions that writes need are not delayed.
func (r *reclaimer) compact(ctx context.Context, span pebble.KeyRange) error {
	begun := time.Now()
	err := r.core.fault.write(func() error { return r.core.db.Compact(ctx, span.Start, span.End, false) })
	if err != nil {
		return fmt.Errorf("hapax: reclaiming the space of what was dropped: %w", asRead(err))
	}
	return wait.For(ctx, min(time.Since(begun), time.Second))
}

// gone waits until the unreferenced files are deleted.
func (r *reclaimer) gone(ctx context.Context) error {
	for {
		waiting, err := r.waitingFiles()
		if err != nil || waiting == 0 {
			return err
		}
		if err := wait.For(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// waitingFiles returns the size of the tables that are no longer part of the store and not deleted
// yet: they wait for Pebble's next check, or for an iterator to be closed.
func (r *reclaimer) waitingFiles() (uint64, error) {
	return readValue(r.core.fault, func() (uint64, error) {
		t := r.core.db.Metrics().Table
		return t.ZombieSize + t.ObsoleteSize, nil
	})
}

// dropped has the ranges that were dropped and not reclaimed since the store was opened.
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
