package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Retention drops weeks and scopes, see Engine.Retention.
type Retention struct {
	core    *core
	finder  *finder
	queue   *queue
	holds   *holds
	rebuild *rebuilder
	drops   chan struct{} // full while a drop runs, so that there is one at a time
	reclaim reclaim
	nights  sync.WaitGroup // the nightly runs
}

// OldestWeek returns the oldest retained week: events before it are TooOld.
func (t *Retention) OldestWeek() weekbucket.Week { return t.finder.retained.oldestWeek() }

// drop raises the oldest retained week to the result of until, and those of single scopes to the
// result of scopes, which may be nil. Then it removes the claims before them. Both functions run in
// the committer, so no claim and no hold can intervene.
//
// The mark is durable before anything is removed. A crash in between leaves weeks that are TooOld
// and still stored, and the next open repeats the removal. Every claim in such a week is decided,
// and so applied, before the mark.
func (t *Retention) drop(ctx context.Context, scopes oldestOfScopes, until func() (weekbucket.Week, string, error)) (DropReport, error) {
	var report DropReport
	if err := t.beginDrop(ctx); err != nil {
		return report, err
	}
	defer t.endDrop()
	err := t.queue.control(ctx, func(g *group) error {
		week, heldBy, err := until()
		if err != nil {
			return err
		}
		report.Oldest, report.HeldBy = max(week, t.finder.retained.decideOld), heldBy
		if scopes != nil {
			floors, heldBy, err := scopes()
			if err != nil {
				return err
			}
			report.HeldBy = cmp.Or(report.HeldBy, heldBy)
			if err := t.finder.retained.floors.raise(g, floors); err != nil {
				return err
			}
			report.Scopes = floors
		}
		if week <= t.finder.retained.decideOld {
			return nil
		}
		report.Weeks = int(week - t.finder.retained.decideOld)
		g.batch.State = append(g.batch.State, storage.StateWrite{Key: keyOldest, Value: week.AppendKey(nil)})
		t.finder.retained.decideOld = week
		g.after = append(g.after, func() { t.finder.retained.oldest.Store(uint32(week)) })
		return nil
	})
	if err != nil {
		return report, err
	}
	return report, t.removeUnretained(ctx, &report)
}

// beginDrop waits until no other drop is running. It returns the error of ctx if ctx ends first.
func (t *Retention) beginDrop(ctx context.Context) error {
	select {
	case t.drops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *Retention) endDrop() { <-t.drops }

// buckets returns the buckets with claims that keep selects. Where the store is damaged, it selects
// from the buckets that the table of names lists.
func (t *Retention) buckets(ctx context.Context, keep func(storage.Bucket) bool) ([]storage.Bucket, error) {
	list, err := t.readableBuckets(ctx, keep)
	var damage *storage.DamageError
	if !errors.As(err, &damage) {
		return list, err
	}
	listed := make(map[storage.Bucket]bool, len(list))
	for _, b := range list {
		listed[b] = true
	}
	err = t.queue.control(ctx, func(*group) error {
		t.finder.names.BucketsIn(damage, func(b storage.Bucket) {
			if keep(b) && !listed[b] {
				list = append(list, b)
			}
		})
		return nil
	})
	return list, err
}

// readableBuckets returns the buckets that the store can read and keep selects. If the store is
// damaged, it also returns the DamageError.
func (t *Retention) readableBuckets(ctx context.Context, keep func(storage.Bucket) bool) ([]storage.Bucket, error) {
	if err := t.core.enter(); err != nil {
		return nil, err
	}
	defer t.core.leave()
	var list []storage.Bucket
	err := t.core.store.Buckets(func(b storage.Bucket) error {
		if keep(b) {
			list = append(list, b)
		}
		return ctx.Err()
	})
	if err != nil && ctx.Err() == nil {
		err = t.core.stop(err)
	}
	return list, err
}

// removeUnretained removes the claims before the oldest retained weeks, which are durable, and
// frees names. The caller has called beginDrop.
func (t *Retention) removeUnretained(ctx context.Context, report *DropReport) error {
	if report.Weeks > 0 || len(report.Scopes) > 0 {
		// This must not happen before the mark is durable: until then, the events of these weeks
		// are duplicates, not new.
		err := t.queue.control(context.WithoutCancel(ctx), func(*group) error {
			t.finder.filters.DropBefore(t.finder.retained.decideOld, t.finder.retained.oldestByNumber(t.finder.names))
			return nil
		})
		if err != nil {
			return err
		}
	}
	// Also if no week was dropped: the context of an earlier call may have ended between mark and
	// removal.
	buckets, err := t.removeDropped(ctx)
	report.Buckets = len(buckets)
	if err != nil {
		return err
	}
	return t.freeNames(ctx)
}

// freeNames frees the names that no retained week uses. The claims before the oldest retained weeks
// have been removed, and the caller has called beginDrop.
func (t *Retention) freeNames(ctx context.Context) error {
	for more := true; more; {
		err := t.queue.control(ctx, func(g *group) error {
			g.batch.State, more = t.finder.names.Release(t.finder.retained.oldestWeek(), g.batch.State, maxFreed)
			more = !t.finder.retained.floors.free(g, t.finder.names, t.finder.filters) || more
			t.finder.retained.floors.forget(g, t.finder.retained.oldestWeek())
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// removeDropped removes the remaining claims before the oldest retained weeks, and starts to free
// their space. The caller has called beginDrop.
func (t *Retention) removeDropped(ctx context.Context) ([]storage.Bucket, error) {
	buckets, err := t.buckets(ctx, func(b storage.Bucket) bool { return b.Week < t.finder.retained.oldestOf(b.Scope) })
	if err != nil || len(buckets) == 0 {
		return nil, err
	}
	owed, err := t.owedBuckets()
	if err != nil {
		return nil, err
	}
	noted := make(map[storage.Bucket]bool, len(owed)) // left by an interrupted removal
	for _, b := range owed {
		noted[b] = true
	}
	for _, b := range buckets {
		if !noted[b] {
			owed = append(owed, b)
		}
	}
	if err := t.noteOwed(ctx, owed); err != nil {
		return nil, err
	}
	if err := t.removeBuckets(buckets); err != nil {
		return nil, err
	}
	t.reclaimBehind(owed)
	return buckets, nil
}

func (t *Retention) removeBuckets(buckets []storage.Bucket) error {
	if err := t.core.enter(); err != nil {
		return err
	}
	defer t.core.leave()
	if err := t.core.writes.Drop(buckets); err != nil {
		return t.core.stop(err)
	}
	return nil
}

// owedBuckets and noteOwed read and write the durable list of dropped buckets whose space may not
// be free yet.
func (t *Retention) owedBuckets() ([]storage.Bucket, error) {
	if err := t.core.enter(); err != nil {
		return nil, err
	}
	defer t.core.leave()
	value, found, err := t.core.store.State(keyDrop)
	if err != nil {
		return nil, t.core.stop(err)
	}
	if !found {
		return nil, nil
	}
	buckets, err := parseBuckets(value)
	if err != nil {
		return nil, t.core.stop(err)
	}
	return buckets, nil
}

func (t *Retention) noteOwed(ctx context.Context, buckets []storage.Bucket) error {
	var value []byte
	if len(buckets) > 0 {
		value = encodeBuckets(buckets)
	}
	return t.queue.control(ctx, func(g *group) error {
		g.batch.State = append(g.batch.State, storage.StateWrite{Key: keyDrop, Value: value})
		return nil
	})
}

// reclaimBehind frees the space of dropped buckets in the background. A later drop includes the
// buckets that an earlier one did not free.
func (t *Retention) reclaimBehind(owed []storage.Bucket) {
	if t.core.enter() != nil {
		return // the next open reads the list
	}
	defer t.core.leave()
	t.reclaim.begin()
	t.core.goBehind(func(ctx context.Context) {
		defer t.reclaim.end()
		t.reclaim.turn.Lock()
		defer t.reclaim.turn.Unlock()
		if err := t.core.writes.Reclaim(ctx, owed); err != nil {
			if ctx.Err() == nil {
				_ = t.core.stop(err) // after confined damage, the next drop and the next open try again
			}
			return
		}
		t.rebuild.again()
		if t.beginDrop(ctx) != nil {
			return // the engine is closing; the next open reads the list
		}
		defer t.endDrop()
		now, err := t.owedBuckets()
		if err == nil && slices.Equal(now, owed) {
			_ = t.noteOwed(ctx, nil) // if it fails, the next open reclaims again
		}
	})
}

// finishDrops repeats interrupted removals, and frees space that is still occupied. The caller has
// called reclaim.begin, so that Reclaimed waits for it.
func (t *Retention) finishDrops(ctx context.Context) {
	defer t.reclaim.end()
	if t.beginDrop(ctx) != nil {
		return // the engine is closing
	}
	defer t.endDrop()
	removed, err := t.removeDropped(ctx)
	if err == nil {
		err = t.freeNames(ctx)
	}
	if err != nil || len(removed) > 0 {
		return // the engine is closing or has failed, or the store is damaged: the next drop and the next open try again
	}
	if owed, err := t.owedBuckets(); err == nil && len(owed) > 0 {
		t.reclaimBehind(owed)
	}
}

// Reclaimed waits until the space of all dropped weeks is freed, or ctx ends. This includes weeks
// whose removal was interrupted and is repeated after Open.
func (t *Retention) Reclaimed(ctx context.Context) error {
	select {
	case <-t.reclaim.idle():
		return t.core.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// An oldestOfScopes returns the new oldest retained weeks of single scopes, and the name of a hold
// that keeps an expired week of them, "" if there is none. It runs in the committer.
type oldestOfScopes func() (until map[string]weekbucket.Week, heldBy string, err error)
