package kafkaadapter

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A handler that sends a delayed retry, or several messages, forwards the headers of the record that
// it handles. Each message is an event of its own, which the relay has named.
func TestMessagesWithForwardedHeadersAreEachHandledOnce(t *testing.T) {
	for _, forwarded := range [][]string{
		{"hapax_correlation_id", "c"}, {"ce_source", "/s", "ce_id", "7"}, {"idempotency-key", "k"}, {"message_id", "m"},
	} {
		r := newRig(t, 1)
		message := func(id string) *kgo.Record {
			rec := &kgo.Record{Topic: r.topic, Headers: []kgo.RecordHeader{{Key: "hapax_message_id", Value: []byte(id)}}}
			for i := 0; i < len(forwarded); i += 2 {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: forwarded[i], Value: []byte(forwarded[i+1])})
			}
			return rec
		}
		r.Produce(t, message("first"), message("second"), message("second"))
		m := r.start(t, r.work(1, nil))
		r.untilStored(t, 0, 3)
		m.stop(t)
		if len(r.handled()) != 2 {
			t.Errorf("%q: handled %+v", forwarded, r.handled())
		}
		r.checkOnce(t, "first", "second")
	}
}

func TestEventsOfOneRequestAreEachHandled(t *testing.T) {
	r := newRig(t, 1)
	for range 3 {
		r.Produce(t, &kgo.Record{Topic: r.topic, Headers: []kgo.RecordHeader{{Key: "idempotency-key", Value: []byte("k")}}})
	}
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 3)
	m.stop(t)
	if len(r.handled()) != 3 {
		t.Errorf("handled %+v", r.handled())
	}
}
