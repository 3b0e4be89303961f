package kafkaadapter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/internal/untrusted"
)

// handlers calls the application's handlers for a partition and measures how long they run.
type handlers struct {
	hands   hands
	limit   time.Duration  // Route.HandlerTimeout, the limit of one call
	batchAt atomic.Int64   // when the current batch or its handlers began, Unix nanoseconds; 0 between batches
	active  atomic.Int32   // handlers that run
	running atomic.Int64   // offset of the record handled last, -1 before the first; for messages
	ends    []atomic.Int64 // when the contexts of running handlers end, by slot, Unix nanoseconds; 0 if unbounded
}

// under records the start of a batch or of its handlers. Call the returned function at the end.
func (h *handlers) under(began time.Time) (over func()) {
	h.batchAt.Store(began.UnixNano())
	return func() { h.batchAt.Store(0) }
}

// batchAge returns the age of the current batch.
func (h *handlers) batchAge() time.Duration {
	if at := h.batchAt.Load(); at != 0 {
		return max(0, time.Since(time.Unix(0, at)))
	}
	return 0
}

// overdue returns the longest time for which a handler has run since Route.HandlerTimeout ended its
// context, or a negative value.
func (h *handlers) overdue() (most time.Duration) {
	most = -1
	for i := range h.ends {
		if at := h.ends[i].Load(); at != 0 {
			most = max(most, time.Since(time.Unix(0, at)))
		}
	}
	return most
}

// call runs the handler of the record at an offset, or of several records from it on. It copies the
// handler's error, and returns a panic as an error, also a panic in a method of that error, for
// example if the error is a nil pointer.
func (h *handlers) call(ctx context.Context, offset int64, slot int, fn func(ctx context.Context) error) (err error) {
	h.running.Store(offset)
	h.active.Add(1)
	defer h.active.Add(-1)
	defer func() {
		if v := recover(); v != nil {
			err = newPanicError(v)
		}
	}()
	if limit := h.limit; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, ErrHandlerTimeout)
		defer cancel()
		h.ends[slot].Store(time.Now().Add(limit).UnixNano())
		defer h.ends[slot].Store(0)
	}
	if err = fn(ctx); err != nil {
		return untrusted.Take(err) // later changes of the error have no effect
	}
	return nil
}
