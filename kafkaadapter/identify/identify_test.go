package identify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

var (
	aTopicID = [16]byte{0xa1, 15: 0x1f}
	aTime    = time.Date(2025, 5, 7, 12, 0, 0, 123e6, time.UTC)
)

// aRecord returns a record with a timestamp and these headers: name, value, name, value.
func aRecord(headers ...string) *kgo.Record {
	r := &kgo.Record{Topic: "orders", Partition: 3, Offset: 4711, Timestamp: aTime, Key: []byte("k"), Value: []byte("v")}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

// structuredRecord is a CloudEvents event in structured mode.
func structuredRecord(payload string, headers ...string) *kgo.Record {
	r := aRecord(append([]string{"content-type", "application/cloudevents+json; charset=UTF-8"}, headers...)...)
	r.Value = []byte(payload)
	return r
}

func withValue(r *kgo.Record, value string) *kgo.Record {
	r.Value = []byte(value)
	return r
}

func identified(t *testing.T, o Rules, r *kgo.Record) Identity {
	t.Helper()
	id, err := o.Identify(r, aTopicID)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return id
}

func TestFirstRuleThatFindsAnIDIsTaken(t *testing.T) {
	payload := func(id string) func(*kgo.Record) ([]byte, time.Time, error) {
		return func(*kgo.Record) ([]byte, time.Time, error) { return []byte(id), time.Time{}, nil }
	}
	const (
		ce    = "\x00\x02\x02/s\x017"
		event = `{"specversion":"1.0","id":"7","source":"/s"}`
	)
	position := string(PositionID(aTopicID, 3, 4711))
	spelled := func(name, value string) *kgo.Record { return withValue(aRecord(name, value), event) }
	capitals := structuredRecord(`{"id":"7","source":"/s"}`)
	capitals.Headers[0].Value = []byte("APPLICATION/CLOUDEVENTS+JSON ;charset=UTF-8")
	bare := structuredRecord(`{"id":"7","source":"/s"}`)
	bare.Headers[0].Value = []byte("application/cloudevents")
	tests := []struct {
		name string
		o    Rules
		r    *kgo.Record
		id   string
		rule IDRule
	}{
		{"Debezium", Rules{IDHeaders: []string{DebeziumID}}, aRecord("id", "7"), "7", IDHeader},
		{"a bare id may identify anything", Rules{}, aRecord("id", "7"), string(PositionID(aTopicID, 3, 4711)), IDPosition},
		{"message_id", Rules{}, aRecord("message_id", "7"), "7", IDHeader},
		{"a message of an outbox, before all that was forwarded with it", Rules{},
			aRecord(correlation.MessageID, "7", correlation.Header, "c", "ce_id", "e", "ce_source", "/s", "message_id", "m", "idempotency-key", "k"), "7", IDHeader},
		{"a message of an outbox, before its payload", Rules{}, structuredRecord(`{"id":"e","source":"/s"}`, correlation.MessageID, "7"), "7", IDHeader},
		{"idempotency-key", Rules{IDHeaders: append(DefaultIDHeaders(), "idempotency-key")}, aRecord("idempotency-key", "7"), "7", IDHeader},
		{"an idempotency-key names a request", Rules{}, aRecord("idempotency-key", "7"), string(PositionID(aTopicID, 3, 4711)), IDPosition},
		{"Debezium in addition", Rules{IDHeaders: append(DefaultIDHeaders(), DebeziumID)}, aRecord("id", "7"), "7", IDHeader},
		{"a correlation_id names a conversation", Rules{}, aRecord("correlation_id", "7"), string(PositionID(aTopicID, 3, 4711)), IDPosition},
		{"Watermill", Rules{}, aRecord("_watermill_message_uuid", "7"), "7", IDHeader},
		{"the order is that of the list", Rules{}, aRecord("_watermill_message_uuid", "w", "message_id", "m"), "m", IDHeader},
		{"a custom list", Rules{IDHeaders: []string{"x", "y"}}, aRecord("message_id", "m", "y", "7"), "7", IDHeader},
		{"the last of several", Rules{}, aRecord("message_id", "1", "x", "", "message_id", "2"), "2", IDHeader},
		{"an empty header is absent", Rules{}, aRecord("message_id", "1", "message_id", ""), "1", IDHeader},
		{"an empty id leaves it to the next rule", Rules{}, aRecord(correlation.Header, "", "message_id", "7"), "7", IDHeader},
		{"names in other cases of letters", Rules{}, aRecord("Hapax_Message_ID", "x", "message_id", "7"), "7", IDHeader},
		{"binary", Rules{}, aRecord("message_id", "\xff\x00\xfe"), "\xff\x00\xfe", IDHeader},
		{"beginning with the mark", Rules{}, aRecord("message_id", "\x00\x02\x02/s\x017"), "\x00\x01\x00\x02\x02/s\x017", IDHeader},

		{"CloudEvents", Rules{}, aRecord("ce_id", "7", "ce_source", "/s", "message_id", "m"), ce, IDCloudEvents},
		{"CloudEvents without a source", Rules{}, aRecord("ce_id", "7", "message_id", "m"), "m", IDHeader},
		{"CloudEvents with an empty source", Rules{}, aRecord("ce_id", "7", "ce_source", "", "message_id", "m"), "m", IDHeader},
		{"CloudEvents in the list's order", Rules{IDHeaders: []string{"message_id", "ce_id"}},
			aRecord("ce_id", "7", "ce_source", "/s", "message_id", "m"), "m", IDHeader},
		{"CloudEvents not asked for", Rules{IDHeaders: []string{"message_id"}},
			structuredRecord("not JSON", "message_id", "m"), "m", IDHeader},
		{"structured", Rules{}, structuredRecord(`{"id":"7","source":"/s"}`, "message_id", "m"), ce, IDCloudEventsStructured},
		{"structured, in capitals", Rules{}, capitals, ce, IDCloudEventsStructured},
		{"structured, without a format", Rules{}, bare, ce, IDCloudEventsStructured},
		{"structured before headers", Rules{}, structuredRecord(`{"id":"7","source":"/s"}`, "ce_id", "8", "ce_source", "/s"), ce, IDCloudEventsStructured},
		{"structured, names in other cases of letters", Rules{}, structuredRecord(`{"id":"7","ID":"8","source":"/s","Source":1}`), ce, IDCloudEventsStructured},
		{"structured, as Spring spells it", Rules{}, spelled("contentType", `"application/cloudevents+json"`), ce, IDCloudEventsStructured},
		{"structured, as HTTP spells it", Rules{}, spelled("Content-Type", " application/cloudevents+json"), ce, IDCloudEventsStructured},
		{"structured, as JSON spells it", Rules{}, spelled("content_type", "application/cloudevents+json"), ce, IDCloudEventsStructured},
		{"structured, as any JSON", Rules{}, spelled("content-type", "application/json"), ce, IDCloudEventsStructured},
		{"structured, without a content type", Rules{}, withValue(aRecord(), " "+event), ce, IDCloudEventsStructured},
		{"structured, without a content type, after headers", Rules{}, withValue(aRecord("message_id", "m"), event), "m", IDHeader},
		{"structured, without a content type, not asked for", Rules{IDHeaders: []string{"message_id"}}, withValue(aRecord(), event), position, IDPosition},
		{"JSON that has an event in it", Rules{}, withValue(aRecord(), `{"id":"7","source":"/s","data":`+event+`}`), position, IDPosition},
		{"JSON with another specversion", Rules{}, withValue(aRecord(), `{"id":"7","source":"/s","specversion":1}`), position, IDPosition},
		{"JSON with a specversion and no source", Rules{}, withValue(aRecord(), `{"id":"7","specversion":"1.0"}`), position, IDPosition},
		{"half an event", Rules{}, withValue(aRecord(), event[:len(event)-1]), position, IDPosition},

		{"payload", Rules{Payload: payload("7")}, aRecord(), "7", IDPayload},
		{"payload before headers", Rules{Payload: payload("7")}, aRecord("message_id", "h", "ce_id", "c", "ce_source", "/s"), "7", IDPayload},
		{"header if the payload has none", Rules{Payload: payload("")}, aRecord("message_id", "h"), "h", IDHeader},
		{"no id in the payload", Rules{Payload: payload("")}, aRecord(), string(PositionID(aTopicID, 3, 4711)), IDPosition},
		{"position", Rules{}, aRecord(), string(PositionID(aTopicID, 3, 4711)), IDPosition},
		{"no headers asked", Rules{IDHeaders: []string{}}, aRecord("message_id", "h"), string(PositionID(aTopicID, 3, 4711)), IDPosition},

		{"per topic", Rules{PerTopic: true}, aRecord("message_id", "7"), "\x00\x04\x06orders7", IDHeader},
		{"per topic, with the mark", Rules{PerTopic: true}, aRecord("message_id", "\x007"), "\x00\x04\x06orders\x00\x01\x007", IDHeader},
		{"per topic, CloudEvents", Rules{PerTopic: true}, aRecord("ce_id", "7", "ce_source", "/s"), "\x00\x04\x06orders" + ce, IDCloudEvents},
		{"per topic, position", Rules{PerTopic: true}, aRecord(), string(PositionID(aTopicID, 3, 4711)), IDPosition},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := identified(t, tt.o, tt.r)
			if string(id.ID) != tt.id || id.IDRule != tt.rule {
				t.Errorf("id %q by %v, want %q by %v", id.ID, id.IDRule, tt.id, tt.rule)
			}
		})
	}
}

// Stores contain ids: these bytes may never change.
func TestIDEncodingIsGolden(t *testing.T) {
	got := PositionID([16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 0x01020304, 0x0a0b0c0d0e0f1011)
	want := "\x00\x03\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x01\x02\x03\x04\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11"
	if string(got) != want {
		t.Errorf("position: %x, want %x", got, want)
	}
	o := Rules{PerTopic: true}
	long := strings.Repeat("s", 200)
	got = o.eventID("orders", &finding{rule: IDCloudEvents, source: []byte(long), id: []byte("7")})
	if want := "\x00\x04\x06orders\x00\x02\xc8\x01" + long + "\x017"; string(got) != want {
		t.Errorf("CloudEvents per topic: %x, want %x", got, want)
	}
}

// An operator makes the id of an event for a look-up without its record.
func TestIDsForLookUpsAreThoseOfRecords(t *testing.T) {
	for _, perTopic := range []bool{false, true} {
		for what, c := range map[string]struct {
			r    *kgo.Record
			want []byte
		}{
			"plain":          {aRecord("message_id", "7"), PlainID([]byte("7"))},
			"with a zero":    {aRecord("message_id", "\x00\x03"), PlainID([]byte("\x00\x03"))},
			"of CloudEvents": {aRecord("ce_id", "7", "ce_source", "/s"), CloudEventID([]byte("/s"), []byte("7"))},
			"of a position":  {aRecord(), PositionID(aTopicID, 3, 4711)},
		} {
			if perTopic && what != "of a position" { // that has the topic's id
				c.want = WithTopic(c.r.Topic, c.want)
			}
			if got := identified(t, Rules{PerTopic: perTopic}, c.r); !bytes.Equal(got.ID, c.want) {
				t.Errorf("%s, per topic %v: %q, want %q", what, perTopic, got.ID, c.want)
			}
		}
	}
}

// A narrowError is an error whose As expects its own type only.
type narrowError struct{}

func (narrowError) Error() string      { return "narrow" }
func (narrowError) As(target any) bool { *target.(*narrowError) = narrowError{}; return true }

func TestRecordsThatCannotBeIdentified(t *testing.T) {
	failing := func(*kgo.Record) ([]byte, time.Time, error) { return []byte("7"), time.Time{}, errors.New("not ours") }
	panicking := func(*kgo.Record) ([]byte, time.Time, error) { panic("surprise") }
	nilError := func(*kgo.Record) ([]byte, time.Time, error) { return nil, time.Time{}, (*payloadError)(nil) }
	narrowAs := func(*kgo.Record) ([]byte, time.Time, error) { return nil, time.Time{}, narrowError{} }
	undated := aRecord("message_id", "7")
	undated.Timestamp = time.UnixMilli(-1)
	untyped := aRecord("message_id", "7")
	untyped.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{TimestampType: -1})
	batch := structuredRecord(`[{"id":"7","source":"/s"}]`)
	batch.Headers[0].Value = []byte("application/cloudevents-batch+json")
	respelled := func(name string) *kgo.Record {
		r := structuredRecord(`[{"id":"7","source":"/s"}]`)
		r.Headers[0] = kgo.RecordHeader{Key: name, Value: batch.Headers[0].Value}
		return r
	}
	avro := structuredRecord("\x02")
	avro.Headers[0].Value = []byte("APPLICATION/CloudEvents+avro")
	tests := []struct {
		name string
		o    Rules
		r    *kgo.Record
		want error
		says string
	}{
		{"no position", Rules{NoPosition: true}, aRecord(), ErrNoID, "IDHeaders"},
		{"no timestamp", Rules{}, undated, ErrNoTime, "TimeHeaders"},
		{"no type of timestamp", Rules{}, untyped, ErrNoTime, "TimeHeaders"},
		{"Payload fails", Rules{Payload: failing}, aRecord(), ErrBadPayload, "not ours"},
		{"Payload panics", Rules{Payload: panicking}, aRecord(), ErrBadPayload, "surprise"},
		{"Payload's error panics", Rules{Payload: nilError}, aRecord(), ErrBadPayload, "nil pointer"},
		{"Payload's error has a narrow As", Rules{Payload: narrowAs}, aRecord(), ErrBadPayload, "narrow"},
		{"batch", Rules{}, batch, ErrBadPayload, "separate record"},
		{"batch, as JSON spells its type", Rules{}, respelled("Content_Type"), ErrBadPayload, "separate record"},
		{"batch, as Spring spells its type", Rules{}, respelled("contentType"), ErrBadPayload, "separate record"},
		{"batch without its name", Rules{}, structuredRecord(`[{"id":"7","source":"/s"}]`), ErrBadPayload, "array"},
		{"Avro", Rules{}, avro, ErrBadPayload, "+avro"},
		{"not JSON", Rules{}, structuredRecord("seven", "message_id", "7"), ErrBadPayload, "invalid"},
		{"more than JSON", Rules{}, structuredRecord(`{"id":"7","source":"/s"} x`), ErrBadPayload, "after"},
		{"no payload", Rules{}, structuredRecord(""), ErrBadPayload, "end"},
		{"null", Rules{}, structuredRecord("null"), ErrBadPayload, "source"},
		{"no id", Rules{}, structuredRecord(`{"source":"/s"}`), ErrBadPayload, `"id"`},
		{"empty id", Rules{}, structuredRecord(`{"id":"","source":"/s"}`), ErrBadPayload, `"id"`},
		{"a number for an id", Rules{}, structuredRecord(`{"id":7,"source":"/s"}`), ErrBadPayload, `"id"`},
		{"no source", Rules{}, structuredRecord(`{"id":"7"}`), ErrBadPayload, `"source"`},
		{"an id that is not UTF-8", Rules{}, structuredRecord("{\"id\":\"\xff\",\"source\":\"/s\"}"), ErrBadPayload, "UTF-8"},
		{"half a surrogate", Rules{}, structuredRecord(`{"id":"\ud800","source":"/s"}`), ErrBadPayload, "UTF-8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, err := tt.o.Identify(tt.r, aTopicID)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%+v, %v; want %v with %q", id, err, tt.want, tt.says)
			}
		})
	}
}

func TestPositionNeedsTheTopicsID(t *testing.T) {
	var o Rules
	if id, err := o.Identify(aRecord(), [16]byte{}); !errors.Is(err, ErrNoTopicID) {
		t.Errorf("%x, %v; want ErrNoTopicID", id.ID, err)
	}
	if _, err := o.Identify(aRecord("message_id", "7"), [16]byte{}); err != nil {
		t.Errorf("an id of its own: %v", err)
	}
}

// A position under another topic id distinguishes a topic from its successor of the same name.
func TestRecreatedTopicHasOtherPositions(t *testing.T) {
	var o Rules
	before, _ := o.Identify(aRecord(), aTopicID)
	after, _ := o.Identify(aRecord(), [16]byte{1})
	if bytes.Equal(before.ID, after.ID) {
		t.Errorf("%x is the position in both", before.ID)
	}
}

func TestFirstRuleThatFindsATimeIsTaken(t *testing.T) {
	const (
		v7   = "0196a000-0000-7abc-8def-000000000000" // 2025-05-05
		ulid = "01JTG000000000000000000000"           // five bits a letter: 1, 18, 26, 16
	)
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	told := func(at time.Time) func(*kgo.Record) ([]byte, time.Time, error) {
		return func(*kgo.Record) ([]byte, time.Time, error) { return []byte("7"), at, nil }
	}
	const h = "2025-05-01T00:00:00Z"
	tests := []struct {
		name string
		o    Rules
		r    *kgo.Record
		want time.Time
		rule TimeRule
		bad  int
		log  bool
	}{
		{"ce_time", Rules{}, aRecord("message_id", v7, "event_time", "x", "ce_time", h), at(h), TimeCloudEvents, 0, false},
		{"event_time", Rules{}, aRecord("message_id", v7, "timestamp", "x", "event_time", h), at(h), TimeHeader, 0, false},
		{"a message of an outbox", Rules{}, aRecord(correlation.MessageID, v7, correlation.MessageTime, h, "ce_time", "2025-04-01T00:00:00Z", "event_time", "x"), at(h), TimeHeader, 0, false},
		{"another id in a message of an outbox", Rules{IDHeaders: []string{"message_id"}},
			aRecord("message_id", "7", correlation.MessageID, v7, correlation.MessageTime, h), at(h), TimeHeader, 0, true},
		{"a position in a message of an outbox", Rules{IDHeaders: []string{}}, aRecord(correlation.MessageTime, h), at(h), TimeHeader, 0, false},
		{"timestamp", Rules{TimeHeaders: append(DefaultTimeHeaders(), "timestamp")}, aRecord("message_id", v7, "timestamp", h), at(h), TimeHeader, 0, false},
		{"a timestamp may be that of an attempt", Rules{}, aRecord("message_id", "7", "timestamp", h), aTime, TimeRecord, 0, true},
		{"the last of several", Rules{}, aRecord("message_id", "7", "event_time", "x", "event_time", h, "event_time", ""), at(h), TimeHeader, 0, false},
		{"a custom list", Rules{TimeHeaders: []string{"when"}}, aRecord("message_id", "7", "when", h, "ce_time", "x"), at(h), TimeHeader, 0, false},
		{"no headers asked", Rules{TimeHeaders: []string{}}, aRecord("message_id", "7", "ce_time", h), aTime, TimeRecord, 0, true},
		{"structured", Rules{}, structuredRecord(`{"id":"7","source":"/s","time":"2025-05-01T02:00:00+02:00"}`), at(h), TimeCloudEvents, 0, false},
		{"structured, not asked", Rules{TimeHeaders: []string{}}, structuredRecord(`{"id":"7","source":"/s","time":"2025-05-01T00:00:00Z"}`), aTime, TimeRecord, 0, true},
		{"structured, null", Rules{}, structuredRecord(`{"id":"7","source":"/s","time":null}`), aTime, TimeRecord, 0, true},
		{"structured, time only in a header", Rules{}, structuredRecord(`{"id":"7","source":"/s"}`, "ce_time", h), at(h), TimeCloudEvents, 0, false},
		{"structured, not a time", Rules{}, structuredRecord(`{"id":"7","source":"/s","time":{}}`), aTime, TimeRecord, 1, true},
		{"payload before headers", Rules{Payload: told(at("2025-05-01T02:00:00+02:00"))}, aRecord("ce_time", "x"), at(h), TimePayload, 0, false},
		{"payload out of range", Rules{Payload: told(time.Unix(1e12, 0))}, aRecord("ce_time", h), at(h), TimeCloudEvents, 1, false},
		{"payload without one", Rules{Payload: told(time.Time{})}, aRecord(), aTime, TimeRecord, 0, true},
		{"UUIDv7", Rules{}, aRecord("message_id", v7), time.UnixMilli(0x0196a0000000).UTC(), TimeUUIDv7, 0, false},
		{"UUIDv7 in capitals", Rules{}, aRecord("message_id", strings.ToUpper(v7)), time.UnixMilli(0x0196a0000000).UTC(), TimeUUIDv7, 0, false},
		{"UUIDv7 of CloudEvents", Rules{PerTopic: true}, aRecord("ce_id", v7, "ce_source", "/s"), time.UnixMilli(0x0196a0000000).UTC(), TimeUUIDv7, 0, false},
		{"UUIDv7 from the payload", Rules{Payload: func(*kgo.Record) ([]byte, time.Time, error) { return []byte(v7), time.Time{}, nil }},
			aRecord(), time.UnixMilli(0x0196a0000000).UTC(), TimeUUIDv7, 0, false},
		{"ULID", Rules{}, aRecord("message_id", ulid), time.UnixMilli(0x0196a0000000).UTC(), TimeULID, 0, false},
		{"ULID in small letters", Rules{}, aRecord("message_id", strings.ToLower(ulid)), time.UnixMilli(0x0196a0000000).UTC(), TimeULID, 0, false},
		{"UUIDv4", Rules{}, aRecord("message_id", "0196a000-0000-4abc-8def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUID of another variant", Rules{}, aRecord("message_id", "0196a000-0000-7abc-0def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUIDv7 without hyphens may be any digest", Rules{}, aRecord("message_id", strings.ReplaceAll(v7, "-", "")), aTime, TimeRecord, 0, true},
		{"a UUIDv7 of 1970", Rules{}, aRecord("message_id", "00000000-0001-7abc-8def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUIDv7 of 2100", Rules{}, aRecord("message_id", "03bb2cc3-d800-7abc-8def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUIDv7 of 2099", Rules{}, aRecord("message_id", "03bb2cc3-d7ff-7abc-8def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUIDv7 of three days ahead", Rules{}, aRecord("message_id", "0196ba00-0000-7abc-8def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUIDv7 of two years ago", Rules{}, aRecord("message_id", "01880000-0000-7abc-8def-000000000000"), aTime, TimeRecord, 0, true},
		{"a UUIDv7 of months ago", Rules{}, aRecord("message_id", "01900000-0000-7abc-8def-000000000000"), time.UnixMilli(0x019000000000).UTC(), TimeUUIDv7, 0, false},
		{"a number of 26 digits is no ULID", Rules{}, aRecord("message_id", "01200000000000000000000042"), aTime, TimeRecord, 0, true},
		{"a letter that ULIDs do not use", Rules{}, aRecord("message_id", "01JTG00000000000000000000U"), aTime, TimeRecord, 0, true},
		{"malformed, next rule", Rules{}, aRecord("message_id", v7, "ce_time", "yesterday", "event_time", "x"), time.UnixMilli(0x0196a0000000).UTC(), TimeUUIDv7, 2, false},
		{"malformed, next header", Rules{}, aRecord("message_id", "7", "ce_time", "0000-01-01T00:00:00Z", "event_time", h), at(h), TimeHeader, 1, false},
		{"record", Rules{}, aRecord("message_id", "7"), aTime, TimeRecord, 0, true},
		{"position", Rules{}, aRecord(), aTime, TimeRecord, 0, false},
		{"position with a header", Rules{}, aRecord("event_time", h), at(h), TimeHeader, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := identified(t, tt.o, tt.r)
			if !id.Time.Equal(tt.want) || id.Time.Location() != time.UTC || id.TimeRule != tt.rule {
				t.Errorf("%v by %v, want %v by %v", id.Time, id.TimeRule, tt.want, tt.rule)
			}
			if id.BadTimes != tt.bad || id.ApproximateTime != tt.log {
				t.Errorf("bad times %d, log time %v; want %d, %v", id.BadTimes, id.ApproximateTime, tt.bad, tt.log)
			}
		})
	}
}

func TestTimesAreReadInTheseForms(t *testing.T) {
	long := func(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	tests := []struct{ in, want string }{
		{"2025-05-07T12:00:00Z", "2025-05-07T12:00:00Z"},
		{"2025-05-07T14:00:00.123456789+02:00", "2025-05-07T12:00:00.123456789Z"},
		{"1746619200123", "2025-05-07T12:00:00.123Z"},
		{"1746619200", "2025-05-07T12:00:00Z"},
		{"0", "1970-01-01T00:00:00Z"},
		{"99999999999", "5138-11-16T09:46:39Z"},
		{"100000000000", "1973-03-03T09:46:40Z"},
		{"253402300799999", "9999-12-31T23:59:59.999Z"},
		{long(1746619200123), "2025-05-07T12:00:00.123Z"},
		{long(1746619200), "2025-05-07T12:00:00Z"},
		{"20250507", "1970-08-23T09:08:27Z"}, // eight digits are digits

		{"253402300800000", ""},     // year 10000
		{"1746619200123456", ""},    // microseconds
		{"1746619200123456789", ""}, // nanoseconds
		{"99999999999999999999", ""},
		{long(-1), ""},
		{long(1746619200123456), ""},
		{"-1", ""},
		{"+1", ""},
		{"1746619200.5", ""},
		{"1.7e9", ""},
		{" 1746619200", ""},
		{"2025-05-07", ""},
		{"2025-05-07T12:00:00", ""},
		{"2025-05-07 12:00:00Z", ""},
		{"2025-02-30T12:00:00Z", ""},
		{"0000-12-31T23:59:59Z", ""},
		{"0001-01-01T00:30:00+01:00", ""},
		{"9999-12-31T23:30:00-01:00", ""},
		{"", ""},
		{"\x00", ""},
	}
	for _, tt := range tests {
		at, ok := parseTime([]byte(tt.in))
		if ok != (tt.want != "") || ok && (at.Format(time.RFC3339Nano) != tt.want || at.Location() != time.UTC) {
			t.Errorf("%q: %v, %v; want %q", tt.in, at, ok, tt.want)
		}
	}
}

func TestBrokersTimestampIsATimeToo(t *testing.T) {
	r := aRecord("message_id", "7")
	r.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{TimestampType: 1})
	if id := identified(t, Rules{}, r); !id.Time.Equal(aTime) || id.TimeRule != TimeRecord || !id.ApproximateTime {
		t.Errorf("%+v", id)
	}
}

func TestOptionsThatWouldLoseEventsAreRefused(t *testing.T) {
	tests := []struct {
		name string
		o    Rules
		says string // empty: allowed
	}{
		{"zero", Rules{}, ""},
		{"no position, default headers", Rules{NoPosition: true}, ""},
		{"position only", Rules{IDHeaders: []string{}}, ""},
		{"payload only", Rules{IDHeaders: []string{}, NoPosition: true,
			Payload: func(*kgo.Record) ([]byte, time.Time, error) { return nil, time.Time{}, nil }}, ""},
		{"nothing", Rules{IDHeaders: []string{}, NoPosition: true}, "leave no source for an id"},
		{"no name", Rules{IDHeaders: []string{"a", ""}}, "IDHeaders[1] is empty"},
		{"no name of a time", Rules{TimeHeaders: []string{""}}, "TimeHeaders[0] is empty"},
		{"twice", Rules{IDHeaders: []string{"a", "b", "a"}}, `"a" twice`},
		{"source", Rules{IDHeaders: []string{"ce_source"}}, "many events share"},
		{"trace", Rules{IDHeaders: []string{"traceparent"}}, "many events share"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.o.Validate()
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

func TestRulesHaveNamesOfTheirOwn(t *testing.T) {
	if int(IDRules[len(IDRules)-1]) != idRuleCount-1 || int(TimeRules[len(TimeRules)-1]) != timeRuleCount-1 {
		t.Error("a table for a rule is too short or too long")
	}
	seen := map[string]bool{}
	for i, r := range IDRules {
		if int(r) != i+1 || strings.Contains(r.String(), "(") || seen[r.String()] {
			t.Errorf("rule %d is %d, %q", i, r, r)
		}
		seen[r.String()] = true
	}
	clear(seen)
	for i, r := range TimeRules {
		if int(r) != i+1 || strings.Contains(r.String(), "(") || seen[r.String()] {
			t.Errorf("rule %d is %d, %q", i, r, r)
		}
		seen[r.String()] = true
	}
	if IDRule(0).String() != "id_rule(0)" || TimeRule(77).String() != "time_rule(77)" {
		t.Errorf("%v, %v", IDRule(0), TimeRule(77))
	}
}

func TestPlainIDIsNotCopied(t *testing.T) {
	var o Rules
	r := aRecord("trace", "x", "message_id", "0196a000-0000-7abc-8def-000000000000")
	if n := testing.AllocsPerRun(100, func() { _, _ = o.Identify(r, aTopicID) }); n != 0 {
		t.Errorf("%v allocations for an id from a header", n)
	}
	for name, r := range map[string]*kgo.Record{
		"CloudEvents": aRecord("ce_id", "7", "ce_source", "/s"),
		"position":    aRecord(),
		"mark":        aRecord("message_id", "\x007"),
	} {
		if n := testing.AllocsPerRun(100, func() { _, _ = o.Identify(r, aTopicID) }); n != 1 {
			t.Errorf("%s: %v allocations, want 1", name, n)
		}
	}
}

// An idSource is the origin of an id: two sources are one event if they are equal after plain has
// removed the differences that do not count.
type idSource struct {
	kind              byte
	topic, source, id string
	perTopic          bool
	partition         int32
	offset            int64
	topicID           [16]byte
}

func (s idSource) make() []byte {
	o := Rules{PerTopic: s.perTopic}
	switch s.kind {
	case 0:
		return o.eventID(s.topic, &finding{rule: IDHeader, id: []byte(s.id)})
	case 1:
		return o.eventID(s.topic, &finding{rule: IDCloudEvents, id: []byte(s.id), source: []byte(s.source)})
	default:
		return PositionID(s.topicID, s.partition, s.offset)
	}
}

// level removes the parts that do not belong to the id.
func (s idSource) level() idSource {
	switch s.kind {
	case 0:
		s = idSource{topic: s.topic, id: s.id, perTopic: s.perTopic}
	case 1:
		s = idSource{kind: 1, topic: s.topic, source: s.source, id: s.id, perTopic: s.perTopic}
	default:
		return idSource{kind: 2, partition: s.partition, offset: s.offset, topicID: s.topicID}
	}
	if !s.perTopic {
		s.topic = ""
	}
	return s
}

func FuzzIDsOfDifferentEventsDiffer(f *testing.F) {
	f.Add(byte(0), "t", "", "\x00\x02\x01a\x01b", byte(1), "t", "a", "b", byte(0), []byte{})
	f.Add(byte(1), "t", "a", "bc", byte(1), "t", "ab", "c", byte(0), []byte{})
	f.Add(byte(0), "t", "", "uid", byte(0), "tu", "", "id", byte(3), []byte{})
	f.Add(byte(0), "", "", string(PositionID(aTopicID, 3, 4711)), byte(2), "", "", "", byte(0), append(aTopicID[:], 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 18, 103))
	f.Fuzz(func(t *testing.T, kindA byte, topicA, sourceA, idA string, kindB byte, topicB, sourceB, idB string, perTopic byte, place []byte) {
		if len(idA) == 0 || len(idB) == 0 || len(sourceA) == 0 && kindA%3 == 1 || len(sourceB) == 0 && kindB%3 == 1 {
			return // those count as absent
		}
		a := idSource{kind: kindA % 3, topic: topicA, source: sourceA, id: idA, perTopic: perTopic&1 != 0}
		b := idSource{kind: kindB % 3, topic: topicB, source: sourceB, id: idB, perTopic: perTopic&2 != 0}
		place = append(place, make([]byte, 28)...)
		copy(b.topicID[:], place)
		b.partition, b.offset = int32(binary.BigEndian.Uint32(place[16:])), int64(binary.BigEndian.Uint64(place[20:]))
		if same := bytes.Equal(a.make(), b.make()); same != (a.level() == b.level()) {
			t.Fatalf("%+v is %q, %+v is %q", a, a.make(), b, b.make())
		}
	})
}

// Any headers and payload: no panic, the same result twice, and a result that the engine accepts.
func FuzzIdentify(f *testing.F) {
	f.Add("message_id", "7", "event_time", "1746619200", "content-type", "text/plain", []byte("v"), int64(1))
	f.Add("ce_id", "7", "ce_source", "/s", "ce_time", "2025-05-07T12:00:00Z", []byte("v"), int64(1))
	f.Add("content-type", "application/cloudevents+json", "", "", "", "", []byte(`{"id":"7","source":"/s","time":"2025-05-07T12:00:00Z"}`), int64(1))
	f.Add("content-type", "Application/CloudEvents-Batch", "id", "01970000-0000-7abc-8def-000000000000", "", "", []byte(`[]`), int64(-1))
	f.Add("id", "01JW0000000000000000000000", "event_time", "\x00\x00\x01\x96\xab\xcd\xef\x01", "id", "", []byte(nil), int64(1)<<62)
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string, payload []byte, millis int64) {
		r := aRecord(k1, v1, k2, v2, k3, v3)
		r.Value, r.Timestamp = payload, time.UnixMilli(millis)
		for _, o := range []Rules{{}, {PerTopic: true, NoPosition: true, IDHeaders: []string{k1, CloudEventsID}, TimeHeaders: []string{k2, CloudEventsTime}}} {
			id, err := o.Identify(r, aTopicID)
			if err != nil {
				if !errors.Is(err, ErrNoID) && !errors.Is(err, ErrNoTime) && !errors.Is(err, ErrBadPayload) {
					t.Fatalf("not one of the stated errors: %v", err)
				}
				continue
			}
			if again, err := o.Identify(r, aTopicID); err != nil || !bytes.Equal(again.ID, id.ID) || again.Time != id.Time {
				t.Fatalf("%+v, then %+v, %v", id, again, err)
			}
			if len(id.ID) == 0 || !inYears(id.Time) || id.IDRule == 0 || id.TimeRule == 0 {
				t.Fatalf("%+v", id)
			}
			if id.ApproximateTime != (id.TimeRule == TimeRecord && id.IDRule != IDPosition) && id.TimeRule != TimeHeader {
				t.Fatalf("log time of %+v", id)
			}
		}
	})
}

func BenchmarkIdentify(b *testing.B) {
	const v7 = "0196a000-0000-7abc-8def-000000000000"
	for _, bb := range []struct {
		name string
		r    *kgo.Record
	}{
		{"header", aRecord("trace", "x", "type", "order", "message_id", "order-7", "tenant", "t")},
		{"header UUIDv7", aRecord("trace", "x", "type", "order", "message_id", v7, "tenant", "t")},
		{"header ULID", aRecord("trace", "x", "type", "order", "message_id", "01JW0000000000000000000000", "tenant", "t")},
		{"header and time", aRecord("trace", "x", "event_time", "1746619200123", "message_id", v7, "tenant", "t")},
		{"CloudEvents", aRecord("ce_specversion", "1.0", "ce_type", "order", "ce_source", "/orders", "ce_id", v7, "ce_time", "2025-05-07T12:00:00Z")},
		{"structured", structuredRecord(`{"specversion":"1.0","id":"7","source":"/s","type":"order","time":"2025-05-07T12:00:00Z","data":{"a":[1,2,3]}}`)},
		{"position", aRecord("trace", "x", "type", "order")},
	} {
		b.Run(bb.name, func(b *testing.B) {
			var o Rules
			b.ReportAllocs()
			for b.Loop() {
				if _, err := o.Identify(bb.r, aTopicID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A payloadError is an error of which Rules.Payload returns a nil pointer.
type payloadError struct{ text string }

func (e *payloadError) Error() string { return e.text }
