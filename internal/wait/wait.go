// Package wait pauses goroutines for a time that their context can cut short.
package wait

import (
	"context"
	"time"
)

// For returns nil after d, or at once the error of ctx when ctx ends. If ctx has already ended, For
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
