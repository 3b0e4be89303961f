package identify

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

func TestARecordGetsAnIDOnceForEachLogicalSend(t *testing.T) {
	r := aRecord("type", "prize")
	r.Timestamp = time.Now()
	EnsureID(r)
	first, err := (&Rules{}).Identify(r, [16]byte{1})
	if err != nil || first.IDRule != IDHeader {
		t.Fatalf("%+v, %v", first, err)
	}
	if parsed, err := uuid.ParseBytes(first.ID); err != nil || parsed.Version() != 7 || first.TimeRule != TimeUUIDv7 {
		t.Errorf("the id is %q and its time from %v: %v", first.ID, first.TimeRule, err)
	}
	r.Partition, r.Offset, r.Timestamp = 7, 8, r.Timestamp.Add(8*24*time.Hour) // the copy that a retry writes
	EnsureID(r)
	again, err := (&Rules{}).Identify(r, [16]byte{1})
	if err != nil || !bytes.Equal(again.ID, first.ID) || len(r.Headers) != 2 {
		t.Errorf("a retry has the id %q, want %q: %v", again.ID, first.ID, err)
	}
	other := aRecord("type", "prize")
	EnsureID(other)
	if id := LastHeader(other.Headers, correlation.Header); len(id) == 0 || bytes.Equal(id, first.ID) {
		t.Errorf("another send has the id %q", id)
	}
}

func TestAnIDOfTheProducerIsKept(t *testing.T) {
	for _, headers := range [][]string{
		{correlation.Header, "7"},
		{"message_id", "7"},
		{correlation.MessageID, "7"},
		{"_watermill_message_uuid", "7"},
		{"ce_specversion", "1.0", "ce_source", "/s", "ce_id", "7", "ce_type", "t"},
	} {
		r := aRecord(headers...)
		EnsureID(r)
		if len(r.Headers) != len(headers)/2 {
			t.Errorf("%q has become %v", headers, r.Headers)
		}
	}
	for _, r := range []*kgo.Record{aRecord(correlation.Header, ""), aRecord("idempotency-key", "that of a request")} {
		EnsureID(r)
		if len(LastHeader(r.Headers, correlation.Header)) == 0 {
			t.Errorf("%v counts as an id", r.Headers[0])
		}
	}
}

func TestTheCorrelationHeaderIsTheFirstOfTheDefaults(t *testing.T) {
	r := aRecord("ce_specversion", "1.0", "ce_source", "/s", "ce_id", "c", "ce_type", "t", "message_id", "m", correlation.Header, "7")
	if id, err := (&Rules{}).Identify(r, [16]byte{1}); err != nil || string(id.ID) != "7" {
		t.Errorf("the id is %q, %v", id.ID, err)
	}
}
