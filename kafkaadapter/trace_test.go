package kafkaadapter

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const aTraceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// aRecord returns a record with these headers: name, value, name, value.
func aRecord(headers ...string) *kgo.Record {
	r := &kgo.Record{Topic: "orders"}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

func TestTraceOfTheProducerContinues(t *testing.T) {
	r := aRecord("traceparent", "00-00000000000000000000000000000001-0000000000000001-00", "traceparent", aTraceparent, "tracestate", "a=1")
	sc := trace.SpanContextFromContext(traced(context.Background(), nil, r))
	if sc.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || sc.SpanID().String() != "b7ad6b7169203331" ||
		!sc.IsSampled() || !sc.IsRemote() || sc.TraceState().String() != "a=1" {
		t.Errorf("%+v", sc)
	}
}

func TestRecordsWithoutATraceLeaveTheContextUnchanged(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	both := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	for name, r := range map[string]*kgo.Record{
		"no headers":        aRecord(),
		"others":            aRecord("message_id", "7"),
		"malformed":         aRecord("traceparent", "00-zz"),
		"in another case":   aRecord("Traceparent", aTraceparent),
		"of a void version": aRecord("traceparent", "ff"+aTraceparent[2:]),
	} {
		if got := traced(ctx, nil, r); got != ctx {
			t.Errorf("%s: %v", name, got)
		}
		if got := traced(ctx, both, r); got != ctx {
			t.Errorf("%s, with baggage: %v", name, got)
		}
	}
	r := aRecord("message_id", "7", "tenant", "x")
	for name, p := range map[string]propagation.TextMapPropagator{"trace context": nil, "baggage too": both} {
		if n := allocations(100, func() { traced(ctx, p, r) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Any producer can write baggage.
func TestBaggageIsPassedOnOnlyIfAsked(t *testing.T) {
	for want, p := range map[string]propagation.TextMapPropagator{"7": propagation.Baggage{}, "": nil} {
		ctx := traced(context.Background(), p, aRecord("baggage", "tenant=7", "traceparent", aTraceparent))
		if got := baggage.FromContext(ctx).Member("tenant").Value(); got != want {
			t.Errorf("%v: %q", p, got)
		}
	}
}

func TestCarrierReplacesHeaders(t *testing.T) {
	r := aRecord("traceparent", "1", "x", "2", "traceparent", "3")
	before := r.Headers
	carrierOf(r).Set("traceparent", "4")
	if got := carrierOf(r).Keys(); !slices.Equal(got, []string{"x", "traceparent"}) || carrierOf(r).Get("traceparent") != "4" {
		t.Errorf("%q %v", got, r.Headers)
	}
	if string(before[0].Value) != "1" || string(before[1].Value) != "2" {
		t.Errorf("the headers of another record were changed: %v", before)
	}
}

func TestAtMostOnceHandlersContinueTheTrace(t *testing.T) {
	for _, handlers := range []int{0, 2} {
		r := newRig(t, 1)
		traces := make(chan string, 2)
		p := r.detachedWith(t, AtMostOnce(func(ctx context.Context, _ *Record) error {
			traces <- trace.SpanContextFromContext(ctx).TraceID().String()
			return nil
		}))
		p.partition.route.Concurrency.handlers = handlers
		for i, id := range []string{"a", "b"} {
			rec := r.event(0, id)
			rec.Offset, rec.Timestamp = p.state.next+int64(i), time.Now()
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: "traceparent", Value: []byte(aTraceparent)})
			p.state.taken = append(p.state.taken, rec)
		}
		b, err := p.commitBatch(2)
		if err != nil || !p.partition.handleClaimed(b) {
			t.Fatal(err)
		}
		for range 2 {
			if got := <-traces; got != "0af7651916cd43dd8448eb211c80319c" {
				t.Errorf("%d handlers: the trace is %s", handlers, got)
			}
		}
	}
}
