package telemetry

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
)

// An Observer turns the events of an engine into metrics and spans. Make it before the engine, pass
// it as engine.Options.Observer, and then call Watch. One Observer serves one engine at a time.
type Observer struct {
	calls        calls
	transactions transactions
	watcher      watcher

	registerer prometheus.Registerer
	collector  *collector
	sync       prometheus.Histogram
	synced     prometheus.Counter
}

var _ engine.Observer = (*Observer)(nil)

// New returns an Observer with registered metrics. It returns the error of the registerer, for
// example for a second Observer with the same names. Then nothing is registered. Without a
// Registerer, it only makes spans.
func New(opt Options) (*Observer, error) { return NewDetailed(opt, Detail{}) }

// NewDetailed is New with other bounds than the defaults of Detail.
func NewDetailed(opt Options, detail Detail) (*Observer, error) {
	d, err := detail.withDefaults()
	if err != nil {
		return nil, err
	}
	namespace := opt.Namespace
	if opt, err = opt.Complete(); err != nil {
		return nil, fmt.Errorf("hapax: telemetry: Options.%w", err)
	}
	claims := prometheus.NewCounterVec(counterOpts("claims_total",
		"Verdicts, by scope and outcome. Those given in a transaction count when it commits."),
		[]string{LabelScope, LabelOutcome})
	attempts := prometheus.NewCounterVec(counterOpts("claim_attempts_total",
		"Verdicts given, by outcome, including those in transactions and parts that were rolled back."),
		[]string{LabelOutcome})
	overflow := prometheus.NewCounter(counterOpts("scope_overflow_claims_total",
		"Verdicts counted under the scope _other, because the cap on scopes is reached."))
	durations := prometheus.NewHistogramVec(histogramOpts("claim_duration_seconds",
		"Time that a call took to judge its event, its batch of events, or those of its transaction, durability included."), []string{LabelCall})

	o := &Observer{
		watcher:    watcher{every: d.WeeksEvery},
		registerer: opt.Registerer,
		sync: prometheus.NewHistogram(histogramOpts("sync_duration_seconds",
			"Time from handing a batch to the store until it was durable.")),
		synced: prometheus.NewCounter(counterOpts("synced_claims_total",
			"Claims in the batches that became durable. Over the count of sync_duration_seconds: claims for each sync.")),
	}
	scopes := newScopes(claims, attempts, overflow, d.MaxScopes)
	tracers := newTracers(namespace, opt, d)
	o.calls.init(scopes, tracers, durations.WithLabelValues("single"), durations.WithLabelValues("batch"))
	o.transactions.init(scopes, tracers, durations.WithLabelValues("transaction"))
	o.collector = &collector{
		pushed:  []prometheus.Collector{claims, attempts, overflow, durations, o.sync, o.synced},
		figures: newFigures(d.MaxWeeks, &o.watcher),
	}
	if opt.Registerer == nil {
		return o, nil
	}
	if err := opt.Registerer.Register(o.collector); err != nil {
		return nil, fmt.Errorf("hapax: telemetry: registering the metrics: %w", err)
	}
	return o, nil
}

// Close unregisters the metrics and ends watching. Later verdicts are not counted. It may be called
// again.
func (o *Observer) Close() {
	if o.registerer != nil {
		o.registerer.Unregister(o.collector)
	}
	o.watcher.end()
}

// Synced implements engine.Observer.
func (o *Observer) Synced(took time.Duration, claims int) {
	o.sync.Observe(took.Seconds())
	o.synced.Add(float64(claims))
}

// Claiming implements engine.Observer. The function it returns must be called once; until then,
// events must not change, because it matches scopes and results.
func (o *Observer) Claiming(ctx context.Context, events []engine.Event) func([]engine.Result) {
	return o.calls.Claiming(ctx, events)
}

// Updating implements engine.Observer. All verdicts are counted when the transaction ends. Single
// events are observed only if each has a span.
func (o *Observer) Updating(ctx context.Context) engine.TxObserver {
	return o.transactions.Updating(ctx)
}

// Watch makes scrapes read the figures of the engine, from now until stop is called or the engine
// is closed, whichever is first. It replaces an engine that was watched before. stop waits for a
// call in progress; it may be called before or after the engine is closed, and more than once.
func (o *Observer) Watch(e Engine) (stop func()) {
	return o.watcher.Watch(e)
}
