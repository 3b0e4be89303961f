// Package renewal renews the lease on a claim in time.
package renewal

import (
	"context"
	"time"
)

// A Lease is a lease on a claim, and when it was made or renewed at the earliest: it counts from the moment at which
// the engine decides, before the store has it.
type Lease struct {
	Renew func(context.Context) error
	Of    time.Duration
	From  time.Time
}

// Ensure returns once the lease lasts: if the claim or what followed has taken as long as the lease, it is renewed
// first. The error is that of Renew.
func (l *Lease) Ensure(ctx context.Context) error {
	for time.Since(l.From) >= l.Of {
		if err := l.renew(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Keep renews the lease after each third of it, until stop is called or lost returns true for an error of Renew. stop
// waits for a renewal in progress. l is used by nobody else meanwhile.
func (l *Lease) Keep(ctx context.Context, lost func(error) bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			next := time.NewTimer(l.Of/3 - time.Since(l.From))
			select {
			case <-ctx.Done():
				next.Stop()
				return
			case <-next.C:
			}
			if err := l.renew(ctx); err != nil && lost(err) {
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// renew renews the lease. After an error it is not renewed again at once.
func (l *Lease) renew(ctx context.Context) error {
	l.From = time.Now()
	return l.Renew(ctx)
}
