package kafkaadapter

import "time"

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
