package outbox

import (
	"errors"
	"log/slog"
	"time"

	"github.com/hapax-dev/hapax/internal/reach"
)

// lostAfter is how long connections may fail before they are reported, and logEvery the interval in
// which they are logged.
const (
	lostAfter = 10 * time.Second
	logEvery  = time.Minute
)

// watch logs as long as no broker answers, until end is called.
func (s *shared) watch() (end func()) {
	done := make(chan struct{})
	s.closing.Go(func() {
		t := time.NewTicker(lostAfter / 10)
		defer t.Stop()
		var next time.Time
		for {
			select {
			case <-done:
				return
			case now := <-t.C:
				state, err := s.reach.State(now)
				if err == nil || errors.Is(err, reach.ErrNothing) || now.Before(next) {
					continue
				}
				next = now.Add(logEvery)
				s.opt.Telemetry.Logger.Warn("outbox: no connection to Kafka", slog.String("state", state.String()), slog.Any("error", err))
			}
		}
	})
	return func() { close(done) }
}
