package kafkaadapter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/internal/untrusted"
)

// handlers calls the application's handlers for a partition, and measures how long they run.
type handlers struct {
	hands   hands
	limit   time.Duration  // of one call: Route.HandlerTimeout
	batchAt atomic.Int64   // when the current batch or its handlers began, Unix nanoseconds; 0 between batches
	active  atomic.Int32   // handlers that run
	running atomic.Int64   // the offset of the record handled last, -1 before the first; for messages
	ends    []atomic.Int64 // when the contexts of running handlers end, by slot, Unix nanoseconds; 0 if that is not bounded
}

// under records the start of a batch or of its handlers. Call the returned func when done.
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

// overdue returns the longest time for which a handler has been running since Route.HandlerTimeout
// ended its context; it is negative if there is none.
func (h *handlers) overdue() (most time.Duration) {
	most = -1
	for i := range h.ends {
		if at := h.ends[i].Load(); at != 0 {
			most = max(most, time.Since(time.Unix(0, at)))
		}
	}
	return most
}

// call runs the handler of the record at an offset, or of several beginning with it. It takes the handler's error
// over, and returns a panic as an error, also one of the methods of that error, such as that of a nil
// pointer.
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
		return untrusted.Take(err) // what it becomes later counts for nothing
	}
	return nil
}
