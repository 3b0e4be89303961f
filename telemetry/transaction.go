package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
)

// transactions observes the runs of transactions. It is a part of the Observer.
type transactions struct {
	scopes    *scopes
	tracers   *tracers
	durations prometheus.Observer
	pool      sync.Pool // of *transaction
}

func (ts *transactions) init(s *scopes, t *tracers, durations prometheus.Observer) {
	ts.scopes, ts.tracers, ts.durations = s, t, durations
	ts.pool.New = func() any {
		t := &transaction{transactions: ts}
		t.ended = t.finish
		return t
	}
}

func (ts *transactions) Updating(ctx context.Context) engine.TxObserver {
	t := ts.pool.Get().(*transaction)
	follow := engine.TxObserver{Ended: t.ended}
	if tracer := ts.tracers.tracer(); tracer != nil {
		ctx, t.span = tracer.Start(ctx, ts.tracers.update)
		if ts.tracers.perEvent && t.span.IsRecording() {
			follow.Claiming = t.eachIn(ctx, tracer)
		}
	}
	t.start = time.Now()
	return follow
}

// A transaction is one run of a closure, between Updating and its end. Transactions are reused to
// avoid allocations.
type transaction struct {
	transactions *transactions
	ended        func(judged []engine.VerdictCounts, committed bool, err error) // finish
	start        time.Time
	span         trace.Span // nil without a tracer
}

// eachIn makes a span for each event that the transaction judges, as a child of the transaction's
// span.
func (t *transaction) eachIn(ctx context.Context, tracer trace.Tracer) func(engine.Event) func(engine.Result) {
	tracers := t.transactions.tracers
	return func(ev engine.Event) func(engine.Result) {
		_, span := tracer.Start(ctx, tracers.single)
		return func(res engine.Result) {
			if span.IsRecording() {
				tracers.describe(span, &ev, &res)
			}
			span.End()
		}
	}
}

func (t *transaction) finish(judged []engine.VerdictCounts, committed bool, err error) {
	took := time.Since(t.start).Seconds()
	for i := range judged {
		t.transactions.scopes.countJudged(&judged[i], committed)
	}
	if len(judged) > 0 {
		observe(t.transactions.durations, took, t.span)
	}
	if t.span != nil {
		if t.span.IsRecording() {
			describeTransaction(t.span, judged, committed, err)
		}
		t.span.End()
		t.span = nil
	}
	t.transactions.pool.Put(t)
}
