package outbox

import (
	"context"
	"time"
)

// A Clock is a source of time.
type Clock interface {
	Now() time.Time
	// After returns a channel that receives once d has passed. stop releases it earlier.
	After(d time.Duration) (fired <-chan time.Time, stop func())
}

type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// rest waits for d, for wake, or until ctx ends.
func rest(ctx context.Context, clock Clock, d time.Duration, wake <-chan struct{}) {
	fired, stop := clock.After(d)
	defer stop()
	select {
	case <-fired:
	case <-wake:
	case <-ctx.Done():
	}
}
