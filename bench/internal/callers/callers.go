// Package callers runs goroutines that take batches of items, in order.
package callers

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// Together calls do with each number below n, concurrently, and returns the first error.
func Together(n int, do func(i int) error) (first error) {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- do(i) }()
	}
	for range n {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// A Plan says how many callers there are, and what each of them takes.
type Plan struct {
	Callers  int
	Batch    int       // items of a batch
	InFlight int       // batches of each caller that are started and not yet waited for; 0 = 1
	Until    time.Time // no batch is started after this time; zero: no limit
}

// Take lets the callers take batches of the items until there are none, and returns how many items
// were taken when all batches are done. start starts a batch, and the func that it returns waits
// until the batch is done.
func Take[T any](ctx context.Context, p Plan, items []T, start func(batch []T) (wait func() error)) (taken int, err error) {
	var next atomic.Int64
	err = Together(p.Callers, func(int) error { return call(ctx, p, items, &next, start) })
	return min(int(next.Load()), len(items)), err
}

// call is one caller.
func call[T any](ctx context.Context, p Plan, items []T, next *atomic.Int64, start func(batch []T) (wait func() error)) error {
	var waits []func() error // for the oldest first
	for ctx.Err() == nil && (p.Until.IsZero() || time.Now().Before(p.Until)) {
		from := int(next.Add(int64(p.Batch))) - p.Batch
		if from >= len(items) {
			break
		}
		waits = append(waits, start(items[from:min(from+p.Batch, len(items))]))
		if len(waits) < p.InFlight {
			continue
		}
		if err := waits[0](); err != nil {
			return err
		}
		waits = slices.Delete(waits, 0, 1)
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			return err
		}
	}
	return ctx.Err()
}
