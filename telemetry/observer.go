package telemetry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
)

// An Observer turns what an engine does into metrics and spans. It is made before the engine, given to it as
// engine.Options.Observer, and told of it by Watch. One Observer serves one engine at a time.
type Observer struct {
	opt     Options
	scopes  *scopes
	tracers tracers
	calls   sync.Pool // of *call

	single, batch prometheus.Observer // durations of calls
	sync          prometheus.Histogram
	synced        prometheus.Counter

	pushed []prometheus.Collector // all of the above
	pulled *figures
	watch  atomic.Pointer[watch] // nil while no engine is watched
}

var _ engine.Observer = (*Observer)(nil)

// New returns an Observer whose metrics are registered. The error of the registerer, such as that of a second
// Observer with the same names, is returned; then nothing is registered.
func New(opt Options) (*Observer, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	o := &Observer{opt: opt, pulled: newFigures(opt.Namespace)}
	o.calls.New = o.newCall
	o.tracers.init(opt)

	claims := prometheus.NewCounterVec(prometheus.CounterOpts(o.opts("claims_total",
		"Verdicts told, by scope and outcome. Inside a transaction they count when they are told, not when it commits.")),
		[]string{LabelScope, LabelOutcome})
	overflow := prometheus.NewCounter(prometheus.CounterOpts(o.opts("scope_overflow_claims_total",
		"Verdicts counted under the scope _other, because the cap on scopes is reached.")))
	o.scopes = newScopes(claims, overflow, opt.MaxScopes)

	durations := prometheus.NewHistogramVec(o.histogram("claim_duration_seconds",
		"Time that a call took to judge its event or its batch of events, durability included."), []string{LabelCall})
	o.single, o.batch = durations.WithLabelValues("single"), durations.WithLabelValues("batch")
	o.sync = prometheus.NewHistogram(o.histogram("sync_duration_seconds",
		"Time from handing a batch to the store until it was durable."))
	o.synced = prometheus.NewCounter(prometheus.CounterOpts(o.opts("synced_claims_total",
		"Claims in the batches that became durable. Over the count of sync_duration_seconds: claims for each sync.")))

	o.pushed = []prometheus.Collector{claims, overflow, durations, o.sync, o.synced}
	if err := opt.Registerer.Register(collector{o}); err != nil {
		return nil, fmt.Errorf("telemetry: registering the metrics: %w", err)
	}
	return o, nil
}

func (o *Observer) opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: o.opt.Namespace, Subsystem: subsystem, Name: name, Help: help}
}

// histogram has native buckets 10 % wide and classic ones for those who do not scrape native ones. A duplicate takes
// microseconds, a sync between 0.1 ms and what a slow disk takes.
func (o *Observer) histogram(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: o.opt.Namespace, Subsystem: subsystem, Name: name, Help: help,
		Buckets: []float64{1e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, .1, .25, .5, 1, 2.5, 10},

		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// Close takes the metrics out of the registerer and ends watching. Verdicts told after it are counted nowhere. It may
// be called again.
func (o *Observer) Close() {
	o.opt.Registerer.Unregister(collector{o})
	if w := o.watch.Swap(nil); w != nil {
		w.end()
	}
}

// Synced implements engine.Observer.
func (o *Observer) Synced(took time.Duration, claims int) {
	o.sync.Observe(took.Seconds())
	o.synced.Add(float64(claims))
}

// Claiming implements engine.Observer. The function it returns must be called once; events is read until then, because
// scopes and results have to be brought together.
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

// A call is one that claims, between Claiming and its results. Calls are reused, so that they cost no memory.
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
	observe(durations, took, c.spans)
	c.endSpans(results)
	clear(c.spans)
	c.events, c.spans = nil, c.spans[:0]
	c.o.calls.Put(c)
}

// observe records a duration, with the trace as its exemplar if the first span is recorded and sampled.
func observe(h prometheus.Observer, seconds float64, spans []trace.Span) {
	if len(spans) > 0 && spans[0].IsRecording() {
		if sc := spans[0].SpanContext(); sc.IsSampled() {
			h.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": sc.TraceID().String()})
			return
		}
	}
	h.Observe(seconds)
}

// verdict is the verdict of a result. A call that panics leaves none: that is Failed.
func verdict(r *engine.Result) engine.Verdict {
	if r.Verdict == 0 || int(r.Verdict) > len(engine.Verdicts) {
		return engine.Failed
	}
	return r.Verdict
}
