package telemetry

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/redact"
	"github.com/hapax-dev/hapax/weekbucket"
)

// maxAttrBytes is the length to which attributes are truncated. Events that the engine rejects may
// contain anything.
const maxAttrBytes = 1024

// tracers finds the tracer of the currently registered provider, and has the options of its spans.
type tracers struct {
	provider              func() trace.TracerProvider
	single, batch, update string // names of spans

	perEvent bool
	ids      redact.IDs
	cached   atomic.Pointer[tracerOf]
}

type tracerOf struct {
	provider trace.TracerProvider
	tracer   trace.Tracer
}

func newTracers(namespace string, opt Options, d Detail) *tracers {
	prefix := ""
	if namespace != "" {
		prefix = namespace + "."
	}
	return &tracers{
		provider: opt.TracerProvider,
		single:   prefix + SpanClaim, batch: prefix + SpanClaimBatch, update: prefix + SpanUpdate,
		perEvent: d.SpanPerEvent,
		ids:      opt.IDs,
	}
}

// tracer returns nil if no span would be recorded. It requests a tracer only if the provider has
// changed, because the request takes a lock that the whole process shares.
func (t *tracers) tracer() trace.Tracer {
	p := t.provider()
	if p == nil {
		return nil
	}
	if _, ok := p.(noop.TracerProvider); ok {
		return nil
	}
	if reflect.TypeOf(p).Kind() != reflect.Pointer { // the comparison may panic
		return p.Tracer(Instrumentation)
	}
	c := t.cached.Load()
	if c == nil || c.provider != p {
		c = &tracerOf{p, p.Tracer(Instrumentation)}
		t.cached.Store(c)
	}
	return c.tracer
}

// start appends the spans of a call that claims: none, one, or one for each event.
func (t *tracers) start(ctx context.Context, events int, spans []trace.Span) []trace.Span {
	tracer := t.tracer()
	if tracer == nil {
		return spans
	}
	n, name := 1, t.single
	if events > 1 {
		if t.perEvent {
			n = events
		} else {
			name = t.batch
		}
	}
	for range n {
		_, span := tracer.Start(ctx, name)
		spans = append(spans, span)
	}
	return spans
}

// end ends the spans that start has returned.
func (t *tracers) end(spans []trace.Span, events []engine.Event, results []engine.Result) {
	for i, span := range spans {
		if span.IsRecording() {
			if len(spans) == len(events) {
				t.describe(span, &events[i], &results[i])
			} else {
				describeBatch(span, events, results)
			}
		}
		span.End()
	}
}

func (t *tracers) describe(span trace.Span, ev *engine.Event, res *engine.Result) {
	attrs := make([]attribute.KeyValue, 0, 7)
	attrs = append(attrs, AttrScope.String(untrusted.Capped(ev.Scope, maxAttrBytes)))
	if !t.ids.Omits() {
		attrs = append(attrs, AttrEventID.String(t.ids.Text(string(ev.ID))))
	}
	if week, err := weekbucket.Of(ev.Time); err == nil && !ev.Time.IsZero() {
		attrs = append(attrs, AttrWeekStart.String(week.String()))
	}
	attrs = append(attrs,
		AttrTopic.String(untrusted.Capped(ev.Origin.Topic, maxAttrBytes)),
		AttrPartition.Int64(int64(ev.Origin.Partition)),
		AttrOffset.Int64(ev.Origin.Offset),
		AttrOutcome.String(verdict(res.Verdict).String()))
	span.SetAttributes(attrs...)
	if verdict(res.Verdict) == engine.Failed {
		fail(span, res.Err, "")
	}
}

// A group has the attributes that the events of one span share.
type group struct {
	scope, topic           string
	partition              int32
	noScope, noTopic       bool // the events differ in it
	noPartition, populated bool
}

func (g *group) add(scope, topic string, partition int32) {
	if !g.populated {
		*g = group{scope: scope, topic: topic, partition: partition, populated: true}
		return
	}
	g.noScope = g.noScope || g.scope != scope
	g.noTopic = g.noTopic || g.topic != topic
	g.noPartition = g.noPartition || g.noTopic || g.partition != partition
}

// describe sets the shared attributes, and the number of events with each verdict.
func (g *group) describe(span trace.Span, n *verdictCounts) (events int) {
	attrs := make([]attribute.KeyValue, 0, 4+len(engine.Verdicts))
	if g.populated && !g.noScope {
		attrs = append(attrs, AttrScope.String(untrusted.Capped(g.scope, maxAttrBytes)))
	}
	if g.populated && !g.noTopic {
		attrs = append(attrs, AttrTopic.String(untrusted.Capped(g.topic, maxAttrBytes)))
	}
	if g.populated && !g.noPartition {
		attrs = append(attrs, AttrPartition.Int64(int64(g.partition)))
	}
	for _, v := range engine.Verdicts {
		attrs = append(attrs, attribute.Int(attrCountPrefix+v.String(), n[v]))
		events += n[v]
	}
	span.SetAttributes(append(attrs, AttrEvents.Int(events))...)
	return events
}

func describeBatch(span trace.Span, events []engine.Event, results []engine.Result) {
	var g group
	var n verdictCounts
	var failure error
	for i := range events {
		ev := &events[i]
		g.add(ev.Scope, ev.Origin.Topic, ev.Origin.Partition)
		v := verdict(results[i].Verdict)
		if n[v]++; v == engine.Failed && failure == nil {
			failure = results[i].Err
		}
	}
	g.describe(span, &n)
	if n[engine.Failed] > 0 {
		fail(span, failure, fmt.Sprintf("%d of %d events, the first: ", n[engine.Failed], len(events)))
	}
}

func describeTransaction(span trace.Span, judged []engine.VerdictCounts, committed bool, err error) {
	var g group
	var n verdictCounts
	for i := range judged {
		j := &judged[i]
		g.add(j.Scope, j.Topic, j.Partition)
		for v := range n {
			n[verdict(engine.Verdict(v))] += j.Kept[v] + j.Undone[v]
		}
	}
	events := g.describe(span, &n)
	switch {
	case err != nil:
		fail(span, err, "")
	case !committed:
		span.SetStatus(codes.Error, "the closure panicked")
	case n[engine.Failed] > 0:
		span.SetStatus(codes.Error, fmt.Sprintf("%d of %d events without a verdict", n[engine.Failed], events))
	}
}

func fail(span trace.Span, err error, before string) {
	if err == nil {
		span.SetStatus(codes.Error, before+"no verdict")
		return
	}
	err = untrusted.Error(err) // the error of a closure
	// as RecordError does, which could not report the type
	span.AddEvent("exception", trace.WithAttributes(
		attribute.String("exception.type", untrusted.TypeOf(err)), attribute.String("exception.message", err.Error())))
	span.SetStatus(codes.Error, before+err.Error())
}
