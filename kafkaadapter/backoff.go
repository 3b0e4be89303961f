package kafkaadapter

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// delays are the times between attempts: bounded, exponential, jittered.
type delays struct {
	first, longest time.Duration
	flight         *backoff.ExponentialBackOff
}

func newDelays(b Backoff) *delays {
	s := &delays{first: b.Min, longest: b.Max, flight: backoff.NewExponentialBackOff()}
	s.flight.InitialInterval, s.flight.MaxInterval = 2*time.Millisecond, time.Second
	return s
}

// attempt is the delay after the n-th failed attempt. It depends on n alone, so that it survives a
// restart.
func (s *delays) attempt(n uint32) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = s.first, s.longest, 2
	var d time.Duration
	for range min(max(n, 1), 64) {
		d = b.NextBackOff()
	}
	return min(d, s.longest)
}

// inFlight is the delay before a record whose event another transaction holds is judged again.
func (s *delays) inFlight() time.Duration { return s.flight.NextBackOff() }

func (s *delays) reset() { s.flight.Reset() }
