package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
)

// Claiming implements engine.Observer. The function it returns must be called once; events is read
// until then, because scopes and results must be brought together.
func (o *Observer) Claiming(ctx context.Context, events []engine.Event) func([]engine.Result) {
	if len(events) == 0 {
		return nil
	}
	c := o.calls.Get().(*call)
	c.events = events
	c.startSpans(ctx)
	c.start = time.Now()
	return c.done
}

// A call is one that claims, between Claiming and its results. Calls are reused, so that they cost
// no memory.
type call struct {
	o      *Observer
	done   func([]engine.Result) // finish
	start  time.Time
	events []engine.Event
	spans  []trace.Span // none, one, or one for each event
}

func (o *Observer) newCall() any {
	c := &call{o: o}
	c.done = c.finish
	return c
}

func (c *call) finish(results []engine.Result) {
	if len(results) != len(c.events) {
		return // a bug of the caller's; half of it would be counted wrong
	}
	took := time.Since(c.start).Seconds()
	c.o.scopes.count(c.events, results)
	durations := c.o.single
	if len(c.events) > 1 {
		durations = c.o.batch
	}
	var first trace.Span
	if len(c.spans) > 0 {
		first = c.spans[0]
	}
	observe(durations, took, first)
	c.endSpans(results)
	clear(c.spans)
	c.events, c.spans = nil, c.spans[:0]
	c.o.calls.Put(c)
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
