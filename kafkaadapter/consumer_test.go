package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func traceOf(ctx context.Context) string {
	if s := trace.SpanContextFromContext(ctx); s.IsValid() {
		return s.TraceID().String()
	}
	return ""
}

func TestEachEventTakesEffectOnce(t *testing.T) {
	r := newRig(t, 3)
	ids := numbered("e", 3000)
	var recs []*kgo.Record
	for i, id := range ids {
		recs = append(recs, r.event(int32(i%3), id))
		if i%3 == 0 {
			recs = append(recs, r.event(0, id)) // within a batch
		}
		if i%5 == 0 {
			recs = append(recs, r.event(int32((i+1)%3), ids[i/2])) // much later, on any partition
		}
	}
	r.Produce(t, recs...)
	m := r.start(t, r.work(3, nil))
	for p := range r.partitions {
		r.untilStored(t, p, r.Log(t, r.topic, p).End)
	}
	m.stop(t)
	r.checkOnce(t, ids...)
	if n := len(r.handled()); n < len(ids) {
		t.Errorf("%d calls", n)
	}
}

func TestAtMostOnceClaimsBeforeTheHandler(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "a", "c", "d")
	mode := AtMostOnce(func(ctx context.Context, rec *Record) error {
		if r.stored(t, 0) <= rec.Offset {
			t.Errorf("%s is handled before its claim and offset are stored", rec.Event.ID)
		}
		r.note(ctx, rec)
		switch string(rec.Event.ID) {
		case "b":
			return errHandler
		case "c":
			panic("c")
		}
		return nil
	})
	m := r.start(t, mode)
	kafkatest.Until(t, "four calls", func() bool { return len(r.handled()) == 4 })
	m.stop(t)
	second := r.start(t, mode)
	r.send(t, 0, "b", "e")
	kafkatest.Until(t, "e", func() bool { return len(r.handled()) == 5 })
	second.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("handled %q", got)
	}
	if n := m.logs.count("they are lost"); n != 2 {
		t.Errorf("%d lost events are logged:\n%s", n, m.logs)
	}
}

func TestKafkaGetsOffsetsWithTheStoresIdentity(t *testing.T) {
	r := newRig(t, 2)
	r.send(t, 0, numbered("a", 10)...)
	m := r.start(t, r.work(3, nil))
	r.UntilCommitted(t, r.group, r.topic, 0, 10)
	if o, _ := r.Committed(t, r.group, r.topic, 0); o.Metadata != authorOf(r.eng.Identity()).Metadata() {
		t.Errorf("metadata %q", o.Metadata)
	}
	r.UntilCommitted(t, r.group, r.topic, 1, 0) // committed although there were no records
	r.send(t, 1, numbered("b", 5)...)
	r.untilStored(t, 1, 5)
	m.stop(t)
	if o, _ := r.Committed(t, r.group, r.topic, 1); o.At != 5 {
		t.Errorf("after the end Kafka has %d", o.At)
	}
}

func TestKafkaIsSignedBeforeAnythingIsHandled(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	self := authorOf(r.eng.Identity()).Metadata()
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error {
		if o, ok := r.Committed(t, r.group, r.topic, 0); !ok || o.Metadata != self || o.At != 0 {
			t.Errorf("when the handler runs Kafka has %+v, %v", o, ok)
		}
		return nil
	}))
	r.untilStored(t, 0, 1)
	m.stop(t)
}

func TestRestartContinuesFromTheStore(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, numbered("a", 20)...)
	m := r.start(t, r.work(3, nil))
	r.untilStored(t, 0, 20)
	m.stop(t)
	back := r.offset(0, 7, authorOf(r.eng.Identity()).Metadata())
	r.Commit(t, r.group, back)
	before := len(r.handled())
	r.send(t, 0, "b")
	m = r.start(t, r.work(3, nil))
	r.untilStored(t, 0, 21)
	m.stop(t)
	if got := r.handledIDs()[before:]; !slices.Equal(got, []string{"b"}) {
		t.Errorf("after the restart: %q", got)
	}
	if m.logs.has("duplicate") {
		t.Errorf("records were read again:\n%s", m.logs)
	}
}

// A handler may keep its record, whatever records follow.
func TestHandlersKeepTheirRecords(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("e", 100)
	var sent []string
	for i, id := range ids {
		sent = append(sent, id, ids[i/2], id) // repeats in between
	}
	r.send(t, 0, sent...)
	var kept []*Record
	var as []string
	m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		kept, as = append(kept, rec), append(as, string(rec.Event.ID))
		return nil
	}))
	r.untilStored(t, 0, int64(len(sent)))
	m.stop(t)
	for i, rec := range kept {
		if string(rec.Event.ID) != as[i] || string(rec.Value) != "value-"+as[i] || rec.Event.Origin.Offset != rec.Offset || rec.Verdict != engine.Claimed {
			t.Errorf("the record of %s has become %+v", as[i], rec)
		}
	}
	if len(kept) != len(ids) {
		t.Errorf("%d events of %d were handled", len(kept), len(ids))
	}
}

func TestRunsOnceOnly(t *testing.T) {
	r := newRig(t, 1)
	m := r.start(t, r.work(1, nil))
	r.UntilMembers(t, r.group, 1)
	if err := m.Run(t.Context()); !errors.Is(err, ErrAlreadyRan) {
		t.Errorf("a second Run: %v", err)
	}
	m.stop(t)
}

func TestDuplicatesAreLoggedWithTheirFirstSighting(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "a")
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 3)
	m.stop(t)
	want := "offset=2 id=a"
	for _, line := range strings.Split(m.logs.String(), "\n") {
		if strings.Contains(line, "duplicate skipped") && strings.Contains(line, want) &&
			strings.Contains(line, "level=DEBUG") && strings.Contains(line, "first_origin="+r.topic+"/0@0") {
			return
		}
	}
	t.Errorf("no such line:\n%s", m.logs)
}

func TestTraceContextReachesTheHandler(t *testing.T) {
	r := newRig(t, 1)
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	r.Produce(t, r.event(0, "a", kgo.RecordHeader{Key: "traceparent", Value: []byte("00-" + id + "-00f067aa0ba902b7-01")}), r.event(0, "b"))
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 2)
	m.stop(t)
	if got := r.handled(); got[0].trace != id || got[1].trace != "" {
		t.Errorf("%+v", got)
	}
}

func TestServerSideAssignment(t *testing.T) {
	r := newRig(t, 4)
	ids := numbered("a", 40)
	for i, id := range ids {
		r.send(t, int32(i%4), id)
	}
	server := func(o *Options) {
		o.Membership.serverSide = true
		o.Client = r.ClientOptions()
	}
	a, b := r.start(t, r.work(1, nil), server), r.start(t, r.work(1, nil), server)
	for p := range r.partitions {
		r.untilStored(t, p, 10)
	}
	a.stop(t)
	b.stop(t)
	r.checkOnce(t, ids...)
}

func TestAbortedRecordsAreNotHandled(t *testing.T) {
	r := newRig(t, 1)
	r.ProduceTx(t, true, r.event(0, "a"), r.event(0, "b"))   // 0, 1, marker 2
	r.ProduceTx(t, false, r.event(0, "no"), r.event(0, "c")) // 3, 4, marker 5
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 6)
	r.UntilCommitted(t, r.group, r.topic, 0, 6)
	r.send(t, 0, "c")
	r.untilStored(t, 0, 7)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("handled %q", got)
	}
}
