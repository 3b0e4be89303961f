package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
)

// calls observes the calls that claim. It is a part of the Observer.
type calls struct {
	scopes        *scopes
	tracers       *tracers
	single, batch prometheus.Observer // durations
	pool          sync.Pool           // of *call
}

func (cs *calls) init(s *scopes, t *tracers, single, batch prometheus.Observer) {
	cs.scopes, cs.tracers, cs.single, cs.batch = s, t, single, batch
	cs.pool.New = func() any {
		c := &call{calls: cs}
		c.done = c.finish
		return c
	}
}

func (cs *calls) Claiming(ctx context.Context, events []engine.Event) func([]engine.Result) {
	if len(events) == 0 {
		return nil
	}
	c := cs.pool.Get().(*call)
	c.events = events
	c.spans = cs.tracers.start(ctx, len(events), c.spans)
	c.start = time.Now()
	return c.done
}

// A call is a call that claims, between Claiming and its results. Calls are reused to avoid
// allocations.
type call struct {
	calls  *calls
	done   func([]engine.Result) // finish
	start  time.Time
	events []engine.Event
	spans  []trace.Span // none, one, or one for each event
}

func (c *call) finish(results []engine.Result) {
	if len(results) != len(c.events) {
		return // a bug of the caller: do not count a part of the call
	}
	took := time.Since(c.start).Seconds()
	c.calls.scopes.count(c.events, results)
	durations := c.calls.single
	if len(c.events) > 1 {
		durations = c.calls.batch
	}
	var first trace.Span
	if len(c.spans) > 0 {
		first = c.spans[0]
	}
	observe(durations, took, first)
	c.calls.tracers.end(c.spans, c.events, results)
	clear(c.spans)
	c.events, c.spans = nil, c.spans[:0]
	c.calls.pool.Put(c)
}
