package bench

import "time"

// less is a-b, 0 if that is negative.
func less(a, b uint64) uint64 { return a - min(a, b) }

// apart is by how much a and b differ.
func apart(a, b uint64) uint64 { return less(a, b) + less(b, a) }

func sum(offsets []int64) (all uint64) {
	for _, o := range offsets {
		all += uint64(o)
	}
	return all
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// stopwatch starts a clock; the function that it returns sets seconds to what has passed.
func stopwatch(seconds *float64) func() {
	start := time.Now()
	return func() { *seconds = time.Since(start).Seconds() }
}
