package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A latency records how long calls took. It belongs to one goroutine.
type latency struct{ h *hdrhistogram.Histogram }

// Nanoseconds to ten minutes, in steps of a thousandth.
func newLatency() latency { return latency{hdrhistogram.New(1, int64(10*time.Minute), 3)} }

func (l latency) since(start time.Time) {
	_ = l.h.RecordValue(min(int64(time.Since(start)), int64(10*time.Minute))) // in range
}

func (l latency) merge(other latency) { l.h.Merge(other.h) }

// micros is a percentile in microseconds.
func (l latency) micros(percentile float64) float64 {
	return float64(l.h.ValueAtPercentile(percentile)) / 1e3
}
