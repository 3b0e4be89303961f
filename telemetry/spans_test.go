package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/hostile"
	"github.com/hapax-dev/hapax/redact"
	"github.com/hapax-dev/hapax/telemetry"
)

// A recorder keeps the spans that have ended.
type recorder struct {
	*tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
}

func newRecorder() recorder {
	e := tracetest.NewInMemoryExporter()
	return recorder{e, sdktrace.NewTracerProvider(sdktrace.WithSyncer(e))}
}

func (r recorder) get() trace.TracerProvider { return r.provider }

// take returns the spans since the last take.
func (r recorder) take() tracetest.SpanStubs {
	defer r.Reset()
	return r.GetSpans()
}

func traced(t testing.TB, opt telemetry.Options, detail telemetry.Detail) (*engine.Engine, recorder) {
	t.Helper()
	r := newRecorder()
	opt.TracerProvider = r.get
	obs, _ := newObserver(t, opt, detail)
	eng, _ := openEngine(t, obs)
	return eng, r
}

func wantSpan(t testing.TB, s tracetest.SpanStub, name string, attrs ...attribute.KeyValue) {
	t.Helper()
	got, want := attribute.NewSet(s.Attributes...), attribute.NewSet(attrs...)
	if s.Name != name || !got.Equals(&want) || len(s.Attributes) != len(attrs) {
		t.Errorf("span %s\n%s\nwant %s\n%s", s.Name, got.Encoded(attribute.DefaultEncoder()),
			name, want.Encoded(attribute.DefaultEncoder()))
	}
}

func TestSpanOfAClaim(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{Namespace: "im2be"}, telemetry.Detail{})
	parent, root := spans.provider.Tracer("test").Start(ctx, "consume")
	sunday := event("billing", "a")
	sunday.Time = time.Date(2026, 3, 1, 23, 30, 0, 0, time.UTC)
	for _, outcome := range []string{"claimed", "duplicate"} {
		if _, err := eng.TryClaim(parent, sunday); err != nil {
			t.Fatal(err)
		}
		got := spans.take()
		if len(got) != 1 {
			t.Fatalf("%d spans", len(got))
		}
		wantSpan(t, got[0], "im2be.dedup.try_claim",
			attribute.String("consumer.scope_id", "billing"),
			attribute.String("event.id", "a"),
			attribute.String("event.week_start", "2026-02-23"),
			attribute.String("kafka.topic", "orders"),
			attribute.Int64("kafka.partition", 3),
			attribute.Int64("kafka.offset", 7),
			attribute.String("dedup.outcome", outcome))
		if got[0].Parent.SpanID() != root.SpanContext().SpanID() || got[0].Status.Code != codes.Unset {
			t.Errorf("parent %v, status %v", got[0].Parent, got[0].Status)
		}
	}
}

func TestSpanOfATransactionHasCounts(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{Namespace: "im2be"}, telemetry.Detail{})
	parent, root := spans.provider.Tracer("test").Start(ctx, "consume")
	undone := errors.New("undone")
	for _, ends := range []error{nil, undone} {
		err := eng.Update(parent, func(tx *engine.Tx) error {
			for _, id := range []string{"a", "a", "b"} {
				if _, err := tx.TryClaim(event("billing", id)); err != nil {
					return err
				}
			}
			return ends
		})
		if !errors.Is(err, ends) {
			t.Fatal(err)
		}
		got := spans.take()
		if len(got) != 1 || got[0].Parent.SpanID() != root.SpanContext().SpanID() {
			t.Fatalf("%d spans, or another parent: %v", len(got), got)
		}
		claimed, duplicate := 2, 1
		if ends != nil { // the first transaction has committed
			claimed, duplicate = 0, 3
		}
		wantSpan(t, got[0], "im2be.dedup.update",
			attribute.String("consumer.scope_id", "billing"),
			attribute.String("kafka.topic", "orders"),
			attribute.Int64("kafka.partition", 3),
			attribute.Int("dedup.events", 3),
			attribute.Int("dedup.claimed", claimed),
			attribute.Int("dedup.duplicate", duplicate),
			attribute.Int("dedup.in_flight", 0),
			attribute.Int("dedup.mismatch", 0),
			attribute.Int("dedup.pending", 0),
			attribute.Int("dedup.too_old", 0),
			attribute.Int("dedup.too_new", 0),
			attribute.Int("dedup.error", 0))
		if ends != nil {
			wantFailure(t, got[0], "undone")
		} else if got[0].Status.Code != codes.Unset {
			t.Errorf("status %v", got[0].Status)
		}
	}
}

func TestSpanForEachEventOfATransaction(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{}, telemetry.Detail{SpanPerEvent: true})
	err := eng.Update(ctx, func(tx *engine.Tx) error {
		if _, err := tx.TryClaim(event("billing", "a")); err != nil {
			return err
		}
		_, err := eng.TryClaim(ctx, event("billing", "a"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got := spans.take()
	if len(got) != 3 || got[0].Name != "dedup.try_claim" || got[0].Parent.SpanID() != got[2].SpanContext.SpanID() ||
		got[2].Name != "dedup.update" || outcome(got[0]) != "claimed" || attr(got[0], telemetry.AttrEventID) != "a" ||
		outcome(got[1]) != "in_flight" {
		t.Errorf("%v", got)
	}
}

func outcome(s tracetest.SpanStub) string { return attr(s, telemetry.AttrOutcome) }

func attr(s tracetest.SpanStub, key attribute.Key) string {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return "(absent)"
}

func TestSpanOfABatchHasCounts(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{}, telemetry.Detail{})
	other := event("push", "b")
	other.Origin.Partition = 4
	future := event("billing", "c")
	future.Time = noon.AddDate(0, 0, 3)
	_, err := eng.TryClaimBatch(ctx, []engine.Event{event("billing", "a"), event("billing", "a"), other, future, event("billing", "")})
	if err != nil {
		t.Fatal(err)
	}
	got := spans.take()
	if len(got) != 1 {
		t.Fatalf("%d spans", len(got))
	}
	wantSpan(t, got[0], "dedup.try_claim_batch",
		attribute.String("kafka.topic", "orders"),
		attribute.Int("dedup.events", 5),
		attribute.Int("dedup.claimed", 2),
		attribute.Int("dedup.duplicate", 1),
		attribute.Int("dedup.in_flight", 0),
		attribute.Int("dedup.mismatch", 0),
		attribute.Int("dedup.pending", 0),
		attribute.Int("dedup.too_old", 0),
		attribute.Int("dedup.too_new", 1),
		attribute.Int("dedup.error", 1))
	wantFailure(t, got[0], "1 of 5 events, the first: hapax: event id is empty")

	if _, err := eng.TryClaimBatch(ctx, []engine.Event{event("billing", "x"), event("billing", "y")}); err != nil {
		t.Fatal(err)
	}
	s := spans.take()[0]
	if attr(s, telemetry.AttrScope) != "billing" || attr(s, telemetry.AttrTopic) != "orders" || attr(s, telemetry.AttrPartition) != "3" {
		t.Errorf("the shared attributes: %v", s.Attributes)
	}
}

func wantFailure(t testing.TB, s tracetest.SpanStub, message string) {
	t.Helper()
	if s.Status.Code != codes.Error || !strings.HasPrefix(s.Status.Description, message) {
		t.Errorf("status %v, want Error %q", s.Status, message)
	}
	if len(s.Events) != 1 || s.Events[0].Name != "exception" {
		t.Errorf("events %v, want the error", s.Events)
	}
}

func TestSpanForEachEventOfABatch(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{}, telemetry.Detail{SpanPerEvent: true})
	_, err := eng.TryClaimBatch(ctx, []engine.Event{event("billing", "a"), event("billing", "a"), event("push", "b")})
	if err != nil {
		t.Fatal(err)
	}
	got := spans.take()
	if len(got) != 3 {
		t.Fatalf("%d spans", len(got))
	}
	for i, want := range []string{"billing a claimed", "billing a duplicate", "push b claimed"} {
		s := got[i]
		if is := attr(s, telemetry.AttrScope) + " " + attr(s, telemetry.AttrEventID) + " " + outcome(s); is != want || s.Name != "dedup.try_claim" {
			t.Errorf("span %d is %s %q, want %q", i, s.Name, is, want)
		}
	}
}

func TestErrorIsRecordedOnTheSpan(t *testing.T) {
	r := newRecorder()
	obs, _ := newObserver(t, telemetry.Options{TracerProvider: r.get}, telemetry.Detail{})
	eng, mem := openEngine(t, obs)
	bad := event("billing", "a")
	bad.Time = time.Time{}
	claim(t, eng, bad, engine.Failed)
	got := r.take()
	wantFailure(t, got[0], "hapax: event time is zero")
	if outcome(got[0]) != "error" || attr(got[0], telemetry.AttrWeekStart) != "(absent)" {
		t.Errorf("%v", got[0].Attributes)
	}
	mem.Fail(errors.New("disk on fire"))
	claim(t, eng, event("billing", "a"), engine.Failed)
	wantFailure(t, r.take()[0], "hapax: stopped after a store failure: ")
}

func TestNoVerdictIsAnError(t *testing.T) {
	r := newRecorder()
	obs, registry := newObserver(t, telemetry.Options{TracerProvider: r.get}, telemetry.Detail{})
	obs.Claiming(ctx, []engine.Event{event("billing", "a")})(make([]engine.Result, 1)) // as after a panic
	if s := r.take()[0]; outcome(s) != "error" || s.Status.Code != codes.Error {
		t.Errorf("%v %v", s.Attributes, s.Status)
	}
	if counts(t, registry)["billing"] != 0 {
		t.Error("counted as claimed")
	}
}

func TestIDsInSpansAreShownAsTheOptionSays(t *testing.T) {
	for name, how := range hostile.IDs {
		t.Run(name, func(t *testing.T) {
			eng, spans := traced(t, telemetry.Options{IDs: how}, telemetry.Detail{})
			for _, id := range []string{"order-1", "\x00\xff", hostile.ID, hostile.Long} {
				_, _ = eng.TryClaim(ctx, event("billing", id))
				s := spans.take()[0]
				want := how.Text(id)
				if how.Omits() {
					want = "(absent)"
				}
				if got := attr(s, telemetry.AttrEventID); got != want {
					t.Errorf("event.id is %q, want %q", got, want)
				}
				for _, kv := range s.Attributes {
					hostile.CheckText(t, kv.Value.String(), how, id)
				}
			}
		})
	}
	if _, err := telemetry.New(telemetry.Options{Registerer: prometheus.NewRegistry(), IDs: redact.Hashed([]byte("short"))}); err == nil {
		t.Error("a short secret is accepted")
	}
}

// A nilError is used as a nil pointer, whose methods panic.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestErrorsOfClosuresInSpansAreShortAndDoNotPanic(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{}, telemetry.Detail{})
	for _, err := range []error{errors.New(hostile.Text), (*nilError)(nil)} {
		_ = eng.Update(ctx, func(*engine.Tx) error { return err })
		s := spans.take()[0]
		if len(s.Events) != 1 || s.Status.Code != codes.Error {
			t.Fatalf("%v %v", s.Events, s.Status)
		}
		hostile.CheckText(t, s.Status.Description, redact.Plain())
		kind := ""
		for _, kv := range s.Events[0].Attributes {
			hostile.CheckText(t, kv.Value.String(), redact.Plain())
			if kv.Key == "exception.type" {
				kind = kv.Value.AsString()
			}
		}
		if want := fmt.Sprintf("%T", err); kind != want {
			t.Errorf("exception.type is %q, want %q", kind, want)
		}
	}
}

func TestAttributesAreValidTextAndBounded(t *testing.T) {
	eng, spans := traced(t, telemetry.Options{}, telemetry.Detail{})
	ev := event(strings.Repeat("\xff", 5000), "a")
	ev.Origin.Topic = strings.Repeat("t", 5000)
	claim(t, eng, ev, engine.Failed)
	for _, kv := range spans.take()[0].Attributes {
		if v := kv.Value.String(); len(v) > 1024 || v != strings.ToValidUTF8(v, "?") {
			t.Errorf("%s has %d bytes: %q", kv.Key, len(v), v)
		}
	}
}

func TestProviderRegisteredLateCounts(t *testing.T) {
	var current trace.TracerProvider
	obs, _ := newObserver(t, telemetry.Options{TracerProvider: func() trace.TracerProvider { return current }}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "nil provider"), engine.Claimed)
	current = noop.NewTracerProvider()
	claim(t, eng, event("billing", "no-op provider"), engine.Claimed)
	for range 2 { // and is replaced
		r := newRecorder()
		current = r.provider
		_, _ = eng.TryClaim(ctx, event("billing", "a"))
		if n := len(r.take()); n != 1 {
			t.Errorf("%d spans at the provider registered last", n)
		}
	}
	current = uncomparable{}
	_, _ = eng.TryClaim(ctx, event("billing", "a"))
	_, _ = eng.TryClaim(ctx, event("billing", "a"))
}

// uncomparable is a provider that == panics on.
type uncomparable struct {
	noop.TracerProvider
	_ []int
}

func TestGlobalProviderRegisteredLateCounts(t *testing.T) {
	obs, _ := newObserver(t, telemetry.Options{}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "a"), engine.Claimed)
	r := newRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(r.provider)
	defer otel.SetTracerProvider(before)
	claim(t, eng, event("billing", "b"), engine.Claimed)
	if got := r.take(); len(got) != 1 || got[0].InstrumentationScope.Name != telemetry.Instrumentation {
		t.Errorf("%d spans at the provider registered after the engine was opened", len(got))
	}
}

func TestWithoutRecordingNothingIsAllocated(t *testing.T) {
	if raceDetector {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	many := make([]engine.Event, 500)
	for i := range many {
		many[i] = event([]string{"a", "b"}[i/250], "id")
	}
	for _, tc := range []struct {
		name     string
		provider trace.TracerProvider
		events   []engine.Event
		perEvent bool
		starts   int
	}{
		{"nil", nil, many[:1], false, 0},
		{"no-op", noop.NewTracerProvider(), many[:1], false, 0},
		{"no-op, batch", noop.NewTracerProvider(), many, false, 0},
		{"no-op, each event", noop.NewTracerProvider(), many, true, 0},
		{"not sampled", unsampled, many[:1], false, 1},
		{"not sampled, batch", unsampled, many, false, 1},
		{"not sampled, each event", unsampled, many, true, 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			provider := func() trace.TracerProvider { return tc.provider }
			obs, _ := newObserver(t, telemetry.Options{TracerProvider: provider}, telemetry.Detail{SpanPerEvent: tc.perEvent})
			results := make([]engine.Result, len(tc.events))
			for i := range results {
				results[i].Verdict = engine.Claimed
			}
			got := testing.AllocsPerRun(200, func() {
				obs.Claiming(ctx, tc.events)(results)
				obs.Synced(time.Millisecond, 1)
			})
			want := 0.0
			if tc.starts > 0 { // what the provider's own Start allocates
				tracer := tc.provider.Tracer("test")
				want = float64(tc.starts) * testing.AllocsPerRun(200, func() { tracer.Start(ctx, "x") })
			}
			if got != want {
				t.Errorf("%v allocations, want %v", got, want)
			}
		})
	}
}

func TestTransactionWithoutRecordingAllocatesWhatOneStartDoes(t *testing.T) {
	if raceDetector {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	for name, provider := range map[string]trace.TracerProvider{"no-op": noop.NewTracerProvider(), "not sampled": unsampled} {
		for _, perEvent := range []bool{false, true} {
			obs, _ := newObserver(t, telemetry.Options{TracerProvider: func() trace.TracerProvider { return provider }}, telemetry.Detail{SpanPerEvent: perEvent})
			judged := []engine.VerdictCounts{{Scope: "billing", Topic: "orders"}}
			judged[0].Kept[engine.Claimed] = 512
			got := testing.AllocsPerRun(200, func() {
				follow := obs.Updating(ctx)
				if follow.Claiming != nil {
					t.Error("single events are observed although no span is recorded")
				}
				follow.Ended(judged, true, nil)
			})
			tracer := provider.Tracer("test")
			want := testing.AllocsPerRun(200, func() { tracer.Start(ctx, "x") })
			if name == "no-op" {
				want = 0
			}
			if got != want {
				t.Errorf("%s, a span for each event %v: %v allocations, want %v", name, perEvent, got, want)
			}
		}
	}
}

func TestSampledTraceIsTheExemplar(t *testing.T) {
	r := newRecorder()
	obs, registry := newObserver(t, telemetry.Options{TracerProvider: r.get}, telemetry.Detail{})
	eng, _ := openEngine(t, obs)
	claim(t, eng, event("billing", "a"), engine.Claimed)
	want := r.take()[0].SpanContext.TraceID().String()
	found := false
	for _, m := range metrics(t, registry, "dedup_claim_duration_seconds") {
		for _, b := range m.GetHistogram().GetBucket() {
			for _, l := range b.GetExemplar().GetLabel() {
				found = found || l.GetValue() == want
			}
		}
	}
	if !found {
		t.Errorf("no exemplar with trace %s", want)
	}
}

func BenchmarkClaiming(b *testing.B) {
	for _, tc := range []struct {
		name     string
		provider trace.TracerProvider
	}{
		{"NoOp", noop.NewTracerProvider()},
		{"NotSampled", sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))},
		{"Sampled", sdktrace.NewTracerProvider()},
	} {
		b.Run(tc.name, func(b *testing.B) {
			obs, err := telemetry.New(telemetry.Options{
				Registerer:     prometheus.NewRegistry(),
				TracerProvider: func() trace.TracerProvider { return tc.provider },
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				events, results := []engine.Event{event("billing", "a")}, []engine.Result{{Verdict: engine.Claimed}}
				for pb.Next() {
					obs.Claiming(context.Background(), events)(results)
				}
			})
		})
	}
}
