// Package wait pauses a goroutine until a time has passed or its context has ended.
package wait

import (
	"context"
	"time"
)

// Bound returns a context that ends after d, or after half of the time until the deadline of ctx if
// that is less, so that its caller can act on the end while ctx lasts.
func Bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(deadline)/2)
	}
	return context.WithTimeout(ctx, d)
}

// For returns nil after d, or the error of ctx as soon as ctx ends. If ctx has already ended, For
// returns its error for any d.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return ctx.Err()
}
