package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// maxAttrBytes is where attributes are cut. Events that the engine refuses may carry anything.
const maxAttrBytes = 1024

// tracers finds the tracer of the provider that is registered now, and knows what its spans are to say.
type tracers struct {
	provider      func() trace.TracerProvider
	single, batch string // names of spans
	perEvent      bool
	ids           EventIDs
	cached        atomic.Pointer[tracerOf]
}

type tracerOf struct {
	provider trace.TracerProvider
	tracer   trace.Tracer
}

func (t *tracers) init(opt Options) {
	prefix := ""
	if opt.Namespace != "" {
		prefix = opt.Namespace + "."
	}
	t.provider = opt.TracerProvider
	t.single, t.batch = prefix+SpanClaim, prefix+SpanClaimBatch
	t.perEvent = opt.SpanPerEvent
	t.ids = opt.EventIDs
}

// tracer returns nil if no span would record. It asks a provider for a tracer only if it is another one than last time:
// asking takes a lock that all of the process shares.
func (t *tracers) tracer() trace.Tracer {
	p := t.provider()
	if p == nil {
		return nil
	}
	if _, ok := p.(noop.TracerProvider); ok {
		return nil
	}
	if reflect.TypeOf(p).Kind() != reflect.Pointer { // comparing it may panic
		return p.Tracer(Instrumentation)
	}
	c := t.cached.Load()
	if c == nil || c.provider != p {
		c = &tracerOf{p, p.Tracer(Instrumentation)}
		t.cached.Store(c)
	}
	return c.tracer
}

func (c *call) startSpans(ctx context.Context) {
	t := &c.o.tracers
	tracer := t.tracer()
	if tracer == nil {
		return
	}
	n, name := 1, t.single
	if len(c.events) > 1 {
		if t.perEvent {
			n = len(c.events)
		} else {
			name = t.batch
		}
	}
	for range n {
		_, span := tracer.Start(ctx, name)
		c.spans = append(c.spans, span)
	}
}

func (c *call) endSpans(results []engine.Result) {
	for i, span := range c.spans {
		if span.IsRecording() {
			if len(c.spans) == len(c.events) {
				c.o.tracers.describe(span, &c.events[i], &results[i])
			} else {
				describeBatch(span, c.events, results)
			}
		}
		span.End()
	}
}

func (t *tracers) describe(span trace.Span, ev *engine.Event, res *engine.Result) {
	attrs := make([]attribute.KeyValue, 0, 7)
	attrs = append(attrs, AttrScope.String(cut(text(ev.Scope))))
	if t.ids != IDsOmitted {
		attrs = append(attrs, AttrEventID.String(t.eventID(ev.ID)))
	}
	if week, err := weekbucket.Of(ev.Time); err == nil && !ev.Time.IsZero() {
		attrs = append(attrs, AttrWeekStart.String(week.String()))
	}
	attrs = append(attrs,
		AttrTopic.String(cut(text(ev.Origin.Topic))),
		AttrPartition.Int64(int64(ev.Origin.Partition)),
		AttrOffset.Int64(ev.Origin.Offset),
		AttrOutcome.String(verdict(res).String()))
	span.SetAttributes(attrs...)
	if verdict(res) == engine.Failed {
		fail(span, res.Err, "")
	}
}

// describeBatch says how many events had which verdict, and what all of them share.
func describeBatch(span trace.Span, events []engine.Event, results []engine.Result) {
	attrs := make([]attribute.KeyValue, 0, 4+len(engine.Verdicts))
	first := &events[0]
	scope, topic, partition := true, true, true
	for i := range events {
		ev := &events[i]
		scope = scope && ev.Scope == first.Scope
		topic = topic && ev.Origin.Topic == first.Origin.Topic
		partition = partition && topic && ev.Origin.Partition == first.Origin.Partition
	}
	if scope {
		attrs = append(attrs, AttrScope.String(cut(text(first.Scope))))
	}
	if topic {
		attrs = append(attrs, AttrTopic.String(cut(text(first.Origin.Topic))))
	}
	if partition {
		attrs = append(attrs, AttrPartition.Int64(int64(first.Origin.Partition)))
	}
	attrs = append(attrs, AttrEvents.Int(len(events)))
	var n [len(engine.Verdicts) + 1]int
	var failure error
	for i := range results {
		v := verdict(&results[i])
		if n[v]++; v == engine.Failed && failure == nil {
			failure = results[i].Err
		}
	}
	for _, v := range engine.Verdicts {
		attrs = append(attrs, attribute.Int(attrCountPrefix+v.String(), n[v]))
	}
	span.SetAttributes(attrs...)
	if n[engine.Failed] > 0 {
		fail(span, failure, fmt.Sprintf("%d of %d events, the first: ", n[engine.Failed], len(events)))
	}
}

func fail(span trace.Span, err error, before string) {
	if err == nil {
		span.SetStatus(codes.Error, before+"no verdict")
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, before+text(err.Error()))
}

func (t *tracers) eventID(id []byte) string {
	switch {
	case t.ids == IDsHashed:
		sum := sha256.Sum256(id)
		return hex.EncodeToString(sum[:16])
	case utf8.Valid(id):
		return cut(string(id[:min(len(id), maxAttrBytes+1)]))
	}
	return cut("0x" + hex.EncodeToString(id[:min(len(id), maxAttrBytes)]))
}

// cut cuts s to at most maxAttrBytes, between characters, and marks the cut.
func cut(s string) string {
	if len(s) <= maxAttrBytes {
		return s
	}
	const mark = "…"
	return strings.ToValidUTF8(s[:maxAttrBytes-len(mark)], "") + mark
}
