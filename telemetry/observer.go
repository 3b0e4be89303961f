package telemetry

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
)

// An Observer turns what an engine does into metrics and spans. It is made before the engine, given
// to it as engine.Options.Observer, and watches it after Watch. One Observer serves one engine at a
// time.
type Observer struct {
	opt          Options
	scopes       *scopes
	tracers      tracers
	calls        sync.Pool // of *call
	transactions sync.Pool // of *transaction

	single, batch, transaction prometheus.Observer // durations of calls
	sync                       prometheus.Histogram
	synced                     prometheus.Counter

	pushed []prometheus.Collector // all of the above
	pulled *figures
	watch  atomic.Pointer[watch] // nil while no engine is watched
}

var _ engine.Observer = (*Observer)(nil)

// New returns an Observer whose metrics are registered. The error of the registerer, such as that
// of a second Observer with the same names, is returned; then nothing is registered.
func New(opt Options) (*Observer, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	o := &Observer{opt: opt, pulled: newFigures(opt.Namespace)}
	o.calls.New, o.transactions.New = o.newCall, o.newTransaction
	o.tracers.init(opt)

	claims := prometheus.NewCounterVec(prometheus.CounterOpts(o.opts("claims_total",
		"Verdicts, by scope and outcome. Those given in a transaction count when it commits.")),
		[]string{LabelScope, LabelOutcome})
	attempts := prometheus.NewCounterVec(prometheus.CounterOpts(o.opts("claim_attempts_total",
		"Verdicts given, by outcome, also in transactions and parts of them that were undone.")),
		[]string{LabelOutcome})
	overflow := prometheus.NewCounter(prometheus.CounterOpts(o.opts("scope_overflow_claims_total",
		"Verdicts counted under the scope _other, because the cap on scopes is reached.")))
	o.scopes = newScopes(claims, attempts, overflow, opt.MaxScopes)

	durations := prometheus.NewHistogramVec(o.histogram("claim_duration_seconds",
		"Time that a call took to judge its event, its batch of events, or those of its transaction, durability included."), []string{LabelCall})
	o.single, o.batch, o.transaction = durations.WithLabelValues("single"), durations.WithLabelValues("batch"), durations.WithLabelValues("transaction")
	o.sync = prometheus.NewHistogram(o.histogram("sync_duration_seconds",
		"Time from handing a batch to the store until it was durable."))
	o.synced = prometheus.NewCounter(prometheus.CounterOpts(o.opts("synced_claims_total",
		"Claims in the batches that became durable. Over the count of sync_duration_seconds: claims for each sync.")))

	o.pushed = []prometheus.Collector{claims, attempts, overflow, durations, o.sync, o.synced}
	if err := opt.Registerer.Register(collector{o}); err != nil {
		return nil, fmt.Errorf("telemetry: registering the metrics: %w", err)
	}
	return o, nil
}

func (o *Observer) opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: o.opt.Namespace, Subsystem: subsystem, Name: name, Help: help}
}

// histogram has native buckets 10 % wide and classic ones for scrapers without support for native
// ones. A duplicate takes microseconds, a sync between 0.1 ms and what a slow disk takes.
func (o *Observer) histogram(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: o.opt.Namespace, Subsystem: subsystem, Name: name, Help: help,
		Buckets: []float64{1e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, .1, .25, .5, 1, 2.5, 10},

		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// Close takes the metrics out of the registerer and ends watching. Verdicts after it are not
// counted. It may be called again.
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

// verdict is v, or Failed for what is none, as a call that panics leaves it.
func verdict(v engine.Verdict) engine.Verdict {
	if v == 0 || int(v) > len(engine.Verdicts) {
		return engine.Failed
	}
	return v
}
