package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/internal/wait"
	"github.com/hapax-dev/hapax/weekbucket"
)

// RunNightly calls DropExpired each day at the given time of day, UTC, for example 3*time.Hour,
// until ctx is done, and passes each outcome to report, if that is not nil. The application runs it
// in a goroutine of its own and stops it by ctx. If a night is missed, the next one drops its weeks
// too. Verdicts on late events do not depend on it.
func (t *retention) RunNightly(ctx context.Context, at time.Duration, report func(DropReport, error)) error {
	if at < 0 || at >= 24*time.Hour {
		return fmt.Errorf("hapax: nightly time %v: give a time of day from 0 to 24h", at)
	}
	for {
		next := weekbucket.NextDaily(t.now(), at)
		// The clock may jump, so it is read at least every hour.
		for now := t.now(); now.Before(next); now = t.now() {
			if err := wait.For(ctx, min(next.Sub(now), time.Hour)); err != nil {
				return err
			}
			if t.now().Add(25 * time.Hour).Before(next) { // it was set back
				next = weekbucket.NextDaily(t.now(), at)
			}
		}
		r, err := t.DropExpired(ctx)
		if report != nil {
			report(r, err)
		}
		if errors.Is(err, ErrClosed) || errors.Is(err, ErrStopped) {
			return err
		}
	}
}
