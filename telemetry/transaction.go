package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
)

// Updating implements engine.Observer. Verdicts are counted when the transaction ends, all at once;
// single events are observed only for a span of each.
func (o *Observer) Updating(ctx context.Context) engine.TxObserver {
	t := o.transactions.Get().(*transaction)
	follow := engine.TxObserver{Ended: t.ended}
	if tracer := o.tracers.tracer(); tracer != nil {
		ctx, t.span = tracer.Start(ctx, o.tracers.update)
		if o.tracers.perEvent && t.span.IsRecording() {
			follow.Claiming = t.eachIn(ctx, tracer)
		}
	}
	t.start = time.Now()
	return follow
}

// A transaction is one run of a closure, between Updating and its end. Transactions are reused, so
// that they cost no memory.
type transaction struct {
	o     *Observer
	ended func(engine.TxSummary) // finish
	start time.Time
	span  trace.Span // nil without a tracer
}

func (o *Observer) newTransaction() any {
	t := &transaction{o: o}
	t.ended = t.finish
	return t
}

// eachIn makes a span for each event that the transaction judges, below the transaction's own.
func (t *transaction) eachIn(ctx context.Context, tracer trace.Tracer) func(engine.Event) func(engine.Result) {
	tracers := &t.o.tracers
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

func (t *transaction) finish(s engine.TxSummary) {
	took := time.Since(t.start).Seconds()
	for i := range s.Judged {
		t.o.scopes.countJudged(&s.Judged[i], s.Committed)
	}
	if len(s.Judged) > 0 {
		observe(t.o.transaction, took, t.span)
	}
	if t.span != nil {
		if t.span.IsRecording() {
			describeTransaction(t.span, &s)
		}
		t.span.End()
		t.span = nil
	}
	t.o.transactions.Put(t)
}
