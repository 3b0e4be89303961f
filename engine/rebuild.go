package engine

import (
	"context"
	"errors"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A rebuilder loads the filters, or rebuilds them by a scan of the claims.
type rebuilder struct {
	core    *core
	finder  *finder
	queue   *queue
	scanner *scanner
	snaps   *filters.Snapshots
}

// load loads the filters, or leaves them untrusted for run to rebuild. seq is the last batch.
func (r *rebuilder) load(seq uint64) error {
	if err := r.snaps.Load(seq); err != nil {
		return err
	}
	if !r.finder.filters.Trusted() {
		return r.noteWeeks()
	}
	r.finder.filters.DropBefore(r.finder.retained.decideOld, r.finder.retained.oldestByNumber(r.finder.names))
	return nil
}

// noteWeeks gives the filters the weeks with claims, for use until they are rebuilt.
func (r *rebuilder) noteWeeks() error {
	weeks := make(map[weekbucket.Week]struct{})
	err := r.core.store.Buckets(func(b storage.Bucket) error {
		weeks[b.Week] = struct{}{}
		return nil
	})
	var damage *storage.DamageError
	if errors.As(err, &damage) {
		r.finder.names.BucketsIn(damage, func(b storage.Bucket) { weeks[b.Week] = struct{}{} })
		err = nil
	}
	r.finder.filters.NoteStored(weeks)
	return err
}

// run rebuilds the filters. If it meets damage, they remain untrusted.
func (r *rebuilder) run(ctx context.Context) {
	rebuild := r.snaps.Rebuild()
	err := r.scanner.beginScan(ctx, rebuild.Begin, func(c scanned) error {
		rebuild.Add(c.ref, c.hash)
		return nil
	})
	if err == nil {
		err = r.queue.control(ctx, func(*group) error {
			rebuild.Finish(r.finder.retained.decideOld, r.finder.retained.oldestByNumber(r.finder.names))
			return nil
		})
	}
	var damage *storage.DamageError
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed):
	case errors.As(err, &damage):
		rebuild.Damaged(damage)
	default:
		_ = r.core.stop(err)
	}
}

// again rebuilds the filters if the last rebuild met damage, which may be gone. It must be called
// in a goroutine of goBehind.
func (r *rebuilder) again() {
	if r.snaps.ForgetDamage() {
		r.core.goBehind(r.run)
	}
}
