package kafkaadapter

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// A batchSize finds the number of records of a batch whose handlers take about the intended time,
// but at least enough for handlers that run in parallel. The time of the commit does not count:
// where commits are slow, smaller batches would only need more of them.
type batchSize struct {
	n, least, most int
	aim            time.Duration
}

// took records how long the handlers of a batch of n records took.
func (s *batchSize) took(n int, d time.Duration) {
	switch {
	case d > s.aim:
		s.n = max(1, s.least, min(s.n, n)/2)
	case n >= s.n && d < s.aim/2:
		s.n = min(2*s.n, s.most)
	}
}

// A pause computes the times between attempts: bounded, exponential, jittered.
type pause struct {
	first, longest time.Duration
	flight         *backoff.ExponentialBackOff
}

func newPause(b Backoff) *pause {
	s := &pause{first: b.Min, longest: b.Max, flight: backoff.NewExponentialBackOff()}
	s.flight.InitialInterval, s.flight.MaxInterval = 2*time.Millisecond, time.Second
	return s
}

// attempt is the pause after the n-th failed attempt. It depends on n alone, so that it survives a
// restart.
func (s *pause) attempt(n uint32) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = s.first, s.longest, 2
	var d time.Duration
	for range min(max(n, 1), 64) {
		d = b.NextBackOff()
	}
	return min(d, s.longest)
}

// inFlight is the pause before a record whose event another transaction holds is judged again.
func (s *pause) inFlight() time.Duration { return s.flight.NextBackOff() }

func (s *pause) reset() { s.flight.Reset() }
