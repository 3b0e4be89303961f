package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

func counterOpts(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help}
}

// histogramOpts has native buckets 10 % wide and classic ones for scrapers without support for
// native ones. A duplicate takes microseconds. A sync takes 0.1 ms or more, depending on the disk.
func histogramOpts(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Subsystem: subsystem, Name: name, Help: help,
		Buckets: []float64{1e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, .1, .25, .5, 1, 2.5, 10},

		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// observe records a duration, with the trace as its exemplar if the span, which may be nil, is
// recorded and sampled.
func observe(h prometheus.Observer, seconds float64, span trace.Span) {
	if span != nil && span.IsRecording() {
		if sc := span.SpanContext(); sc.IsSampled() {
			h.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": sc.TraceID().String()})
			return
		}
	}
	h.Observe(seconds)
}
