package deadletter

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

var (
	aSecret  = []byte("32 bytes that nobody else knows.")
	aTopicID = [16]byte{0xa1, 15: 0x1f}
	aTime    = time.Date(2025, 5, 7, 12, 0, 0, 123e6, time.UTC)
	aStore   = [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 15: 0x10}
)

var (
	anIssuer = Builder{Group: "billing", Scope: "invoices", Store: aStore, Incarnation: 7, Secrets: Secrets{current: aSecret}, Topics: []string{"orders", "orders-again"}}
	unsealed = Builder{Group: "billing", Scope: "invoices", Store: aStore, Incarnation: 7}
)

// aRecord returns a record with a timestamp and these headers: name, value, name, value.
func aRecord(headers ...string) *kgo.Record {
	r := &kgo.Record{Topic: "orders", Partition: 3, Offset: 4711, Timestamp: aTime, Key: []byte("k"), Value: []byte("v")}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

func identified(t *testing.T, r *kgo.Record) identify.Identity {
	t.Helper()
	var rules identify.Rules
	id, err := rules.Identify(r, aTopicID)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// positionID is the id of a record of orders that is identified by its position.
func positionID(t *testing.T, offset int64) string {
	r := aRecord()
	r.Offset = offset
	return string(identified(t, r).ID)
}

// aFailure is the failure of a record that was judged as event.
func aFailure(event identify.Identity) Failure {
	return Failure{
		Reason: Attempts, Err: fmt.Errorf("handling: %w", &fs.PathError{Op: "open", Path: "/x", Err: errors.New("gone")}),
		Attempts: 5, Event: event, Claimed: true, Generation: 2,
	}
}

// aLetter returns the dead letter of r, identified by the zero Rules.
func aLetter(t *testing.T, r *kgo.Record) *letter {
	t.Helper()
	return anIssuer.letter(r, nil, aFailure(identified(t, r)))
}

// values returns the headers by name; a repeated name fails the test.
func values(t *testing.T, r *kgo.Record) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, h := range r.Headers {
		if _, twice := all[h.Key]; twice {
			t.Errorf("header %s is repeated", h.Key)
		}
		all[h.Key] = string(h.Value)
	}
	return all
}

// sentBack returns the record that a tool makes of a dead letter: the same key, value and headers,
// with another position and time.
func sentBack(dead *kgo.Record) *kgo.Record {
	return &kgo.Record{
		Topic: "orders", Partition: 8, Offset: 90210, Timestamp: aTime.Add(30 * 24 * time.Hour),
		Key: dead.Key, Value: dead.Value, Headers: slices.Clone(dead.Headers),
	}
}

func TestDeadLetterIsTheRecordByteForByte(t *testing.T) {
	headers := []kgo.RecordHeader{
		{Key: "message_id", Value: []byte("7")}, {Key: "", Value: []byte{0xff, 0}}, {Key: "twice", Value: []byte("1")},
		{Key: "nothing", Value: nil}, {Key: "empty", Value: []byte{}}, {Key: "twice", Value: []byte("2")},
		{Key: "kafka_dlt-original-topic", Value: []byte("another's")}, {Key: "hapax", Value: []byte("not reserved")},
	}
	for _, tt := range []struct{ key, value []byte }{{nil, nil}, {[]byte{}, []byte{}}, {[]byte("k\xff"), []byte("v\x00")}} {
		r := &kgo.Record{Topic: "orders", Timestamp: aTime, Key: tt.key, Value: tt.value, Headers: slices.Clone(headers)}
		dead := aLetter(t, r).record(Neutral)
		if !reflect.DeepEqual(dead.Key, tt.key) || !reflect.DeepEqual(dead.Value, tt.value) {
			t.Errorf("%+v, want key %v, value %v", dead, tt.key, tt.value)
		}
		if !reflect.DeepEqual(dead.Headers[:len(headers)], headers) {
			t.Errorf("headers %v, want %v first", dead.Headers, headers)
		}
		if !dead.Timestamp.IsZero() {
			t.Errorf("timestamp %v: retention of the dead-letter topic would count from it", dead.Timestamp)
		}
		if !reflect.DeepEqual(r.Headers, headers) {
			t.Errorf("the record's own headers are now %v", r.Headers)
		}
	}
}

// Tools read these headers: they change only with their version.
func TestOwnHeadersAreGolden(t *testing.T) {
	want := map[string]string{
		"message_id":                        "7",
		"hapax_dlt_version":                 "1",
		"hapax_dlt_original_topic":          "orders",
		"hapax_dlt_original_partition":      "3",
		"hapax_dlt_original_offset":         "4711",
		"hapax_dlt_original_timestamp":      "1746619200123",
		"hapax_dlt_original_timestamp_type": "CreateTime",
		"hapax_dlt_group":                   "billing",
		"hapax_dlt_scope":                   "invoices",
		"hapax_dlt_reason":                  "attempts",
		"hapax_dlt_error_type":              "*errors.errorString",
		"hapax_dlt_error":                   "handling: open /x: gone",
		"hapax_dlt_attempts":                "5",
		"hapax_dlt_event_id":                "7",
		"hapax_dlt_event_time":              "2025-05-07T12:00:00.123Z",
		"hapax_dlt_id_rule":                 "header",
		"hapax_dlt_time_rule":               "record",
		"hapax_dlt_generation":              "2",
		"hapax_dlt_seal":                    "1fddbe2b1a4559a86acfb180dc935aa6",
		"hapax_dlt_store":                   "01234567-89ab-cdef-0000-000000000010",
		"hapax_dlt_incarnation":             "7",
	}
	got := values(t, aLetter(t, aRecord("message_id", "7")).record(Neutral))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestEmptyHeadersAreOmitted(t *testing.T) {
	l := anIssuer.letter(aRecord(), nil, Failure{Reason: Undecodable})
	got := values(t, l.record(Neutral))
	for _, name := range []string{dltEventID, dltEventTime, dltIDRule, dltTimeRule, dltGeneration, dltSeal, dltError, dltErrorType} {
		if v, there := got[name]; there {
			t.Errorf("%s is %q", name, v)
		}
	}
	if l.Seal != nil {
		t.Errorf("there is nothing to authenticate, and the seal is %x", l.Seal)
	}
	if _, ok := replayOf(sentBack(l.record(Neutral))); ok {
		t.Error("without an event it is a replay")
	}
}

func TestSpringReadsItsOwnNamesAndEncodings(t *testing.T) {
	r := aRecord("message_id", "7", "kafka_dlt-original-offset", "older")
	r.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{TimestampType: 1})
	got := values(t, aLetter(t, r).record(Spring))
	for name, want := range map[string]string{
		"kafka_dlt-original-topic":          "orders",
		"kafka_dlt-original-partition":      "\x00\x00\x00\x03",
		"kafka_dlt-original-offset":         "\x00\x00\x00\x00\x00\x00\x12\x67",
		"kafka_dlt-original-timestamp":      "\x00\x00\x01\x96\xaa\x9d\xf2\x7b",
		"kafka_dlt-original-timestamp-type": "LogAppendTime",
		"kafka_dlt-original-consumer-group": "billing",
		"kafka_dlt-exception-fqcn":          "*errors.errorString",
		"kafka_dlt-exception-message":       "handling: open /x: gone",
		"kafka_dlt-exception-stacktrace":    "*errors.errorString: handling: open /x: gone",
		"hapax_dlt_original_topic":          "orders",
		"hapax_dlt_original_timestamp_type": "LogAppendTime",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestConnectReadsItsOwnNames(t *testing.T) {
	f := aFailure(identify.Identity{})
	f.Err = nil
	got := values(t, anIssuer.letter(aRecord(), nil, f).record(Connect))
	for name, want := range map[string]string{
		"topic": "orders", "partition": "3", "offset": "4711", "connector.name": "billing", "task.id": "3", "stage": "TASK_PUT",
		"class.name":           "github.com/hapax-dev/hapax/kafkaadapter.Consumer",
		"exception.class.name": "attempts", "exception.message": "attempts", "exception.stacktrace": "attempts: attempts",
	} {
		if got["__connect.errors."+name] != want {
			t.Errorf("%s is %q, want %q", name, got["__connect.errors."+name], want)
		}
	}
}

func TestErrorIsOneLineOfLimitedLength(t *testing.T) {
	l := unsealed.letter(aRecord(), nil, Failure{Err: errors.New("a\nb" + strings.Repeat("é", MaxText))})
	if len(l.Error) > MaxText || len(l.Error) < MaxText-8 || !strings.HasPrefix(l.Error, `a\nb`) {
		t.Errorf("%d bytes of an error: %.10q", len(l.Error), l.Error)
	}
}

// The comment of letter.record states the maximum growth of the records of the dead-letter topic.
func TestHeadersTakeNoMoreThanIsDocumented(t *testing.T) {
	f := aFailure(identify.Identity{ID: []byte("7"), Time: aTime, IDRule: identify.IDCloudEventsStructured, TimeRule: identify.TimeCloudEvents})
	f.Err = errors.New(strings.Repeat("x", 2*MaxText))
	f.Attempts, f.Generation = math.MaxUint32, math.MaxUint64
	r := &kgo.Record{Topic: "t", Partition: math.MaxInt32, Offset: math.MaxInt64, Timestamp: time.UnixMilli(math.MinInt64)}
	l := anIssuer.letter(r, nil, f)
	l.ErrorType = strings.Repeat("x", maxErrorType)
	for names, most := range map[Headers]int{Neutral: 4 << 10, Spring: 10 << 10, Connect: 10 << 10} {
		size := 0
		for _, h := range l.record(names).Headers {
			size += len(h.Key) + len(h.Value) + 2*3 // the lengths
		}
		if size > most || size < most/2 {
			t.Errorf("%d: %d bytes, %d are said", names, size, most)
		}
	}
}

// The dead letter of a replay has the same event as the first letter, and its headers do not grow.
func TestHeadersOfALettersReplayAreReplaced(t *testing.T) {
	for _, names := range []Headers{Neutral, Spring, Connect} {
		first := aLetter(t, aRecord("x", "y")) // identified by its position
		dead := first.record(names)
		for range 3 {
			again := sentBack(dead)
			p, ok := replayOf(again)
			if !ok {
				t.Fatal("not a replay")
			}
			f := aFailure(p.Sealed.Event)
			f.Generation = p.Sealed.Generation + 1
			dead = anIssuer.letter(again, &p, f).record(names)
		}
		want := values(t, first.record(names))
		got := values(t, dead)
		if got[dltGeneration] != "5" || got[dltSeal] == want[dltSeal] {
			t.Errorf("generation %s, seal %s", got[dltGeneration], got[dltSeal])
		}
		want[dltGeneration], want[dltSeal] = got[dltGeneration], got[dltSeal]
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestForgedHeadersAreReplaced(t *testing.T) {
	r := aRecord("message_id", "7", "hapax_dlt_original_topic", "else", "hapax_dlt_nonsense", "x")
	got := values(t, aLetter(t, r).record(Neutral))
	if got[dltTopic] != "orders" || got["hapax_dlt_nonsense"] != "" {
		t.Errorf("%q", got)
	}
	if len(r.Headers) != 3 || r.Headers[1].Key != "hapax_dlt_original_topic" || r.Headers[2].Key != "hapax_dlt_nonsense" {
		t.Errorf("the record's own headers are now %v", r.Headers)
	}
}

func TestReplayContainsTheDataOfTheLetter(t *testing.T) {
	for name, r := range map[string]*kgo.Record{
		"header":     aRecord("message_id", "7"),
		"position":   aRecord(),
		"CloudEvent": aRecord("ce_id", "7", "ce_source", "/s", "ce_time", "2025-05-07T14:00:00.123456789+02:00"),
		"UUIDv7":     aRecord("message_id", "01970000-0000-7abc-8def-000000000000"),
	} {
		l := aLetter(t, r)
		p, ok := replayOf(sentBack(l.record(Spring)))
		if !ok {
			t.Errorf("%s: not a replay", name)
		}
		want := Replay{stamp: stampOf(r), Sealed: l.Sealed, seal: l.Seal}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, want %+v", name, p, want)
		}
	}
}

func TestInvalidHeadersAreNoReplay(t *testing.T) {
	dead := aLetter(t, aRecord("message_id", "7")).record(Neutral)
	for _, tt := range []struct{ name, value string }{
		{dltVersion, "2"}, {dltVersion, ""}, {dltTopic, ""},
		{dltPartition, "-1"}, {dltPartition, "x"}, {dltPartition, "2147483648"}, {dltPartition, "4294967296"}, {dltPartition, ""},
		{dltOffset, "-1"}, {dltOffset, "1e3"}, {dltOffset, "9223372036854775808"},
		{dltTimestamp, "now"}, {dltTimestampType, "Create"},
		{dltGroup, ""}, {dltScope, ""}, {dltScope, "%"}, {dltStore, "7"}, {dltIncarnation, ""}, {dltEventID, "%f"},
		{dltEventID, ""}, {dltEventID, strings.Repeat("x", limits.IDBytes+1)},
		{dltEventTime, "yesterday"}, {dltEventTime, "0000-01-01T00:00:00Z"}, {dltEventTime, ""},
		{dltIDRule, "id_rule(0)"}, {dltTimeRule, ""}, {dltTimeRule, "sundial"},
		{dltGeneration, "-1"}, {dltGeneration, "18446744073709551616"},
	} {
		r := sentBack(dead)
		for i := range r.Headers {
			if r.Headers[i].Key == tt.name {
				r.Headers[i].Value = []byte(tt.value)
			}
		}
		if p, ok := replayOf(r); ok || !reflect.DeepEqual(p, Replay{}) {
			t.Errorf("%s %q: %+v", tt.name, tt.value, p)
		}
	}
	for _, name := range []string{dltError, dltErrorType, dltReason, dltAttempts, dltSeal} {
		r := sentBack(dead)
		r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
		if _, ok := replayOf(r); !ok {
			t.Errorf("without %s it is a replay", name)
		}
	}
}

func TestReplayReopensWhatTheStoreSealed(t *testing.T) {
	set := func(name, value string) func(*kgo.Record) {
		return func(r *kgo.Record) { r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)}) }
	}
	without := func(name string) func(*kgo.Record) {
		return func(r *kgo.Record) {
			r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
		}
	}
	same := func(*kgo.Record) {}
	corrected := func(r *kgo.Record) { r.Value = []byte("corrected") }
	elsewhere := func(r *kgo.Record) { r.Topic = "orders-again" }
	asIs := func(*Builder) {}
	id, position := aRecord("message_id", "7"), aRecord()
	tests := []struct {
		name   string
		record *kgo.Record
		change func(*kgo.Record)
		issuer func(*Builder)
		want   Refusal
	}{
		{"header", id, same, asIs, ""},
		{"position", position, same, asIs, ""},
		{"a corrected payload", id, corrected, asIs, ""},
		{"an id that was lost", id, without("message_id"), asIs, ""},
		{"a binary id as text", aRecord("message_id", "\xff\xfe7"), set("message_id", "\uFFFD\uFFFD7"), asIs, ""},
		{"a cut id", aRecord("message_id", "7\x008"), set("message_id", "7"), asIs, ""},
		{"on a retry topic", id, elsewhere, func(i *Builder) { i.Options.RetryTopics = []string{"orders-again"} }, ""},
		{"a position on a retry topic", position, elsewhere, func(i *Builder) { i.Options.RetryTopics = []string{"orders-again"} }, ""},
		{"a restored store", id, same, func(i *Builder) { i.Incarnation, i.Options.RestoredStore = 8, true }, ""},
		{"a new secret", id, same, func(i *Builder) { i.Secrets = i.Secrets.Rotated() }, ""},
		{"a letter without an event", id, func(r *kgo.Record) { without(dltEventID)(r); without(dltSeal)(r) }, asIs, ""},
		{"another group", id, same, func(i *Builder) { i.Group = "shipping" }, ""},
		{"another scope", id, same, func(i *Builder) { i.Scope = "parcels" }, ""},

		{"on another topic", id, elsewhere, asIs, RefusedTopic},
		{"a position on another topic", position, elsewhere, asIs, RefusedTopic},
		{"of another route, on a retry topic", id, elsewhere, func(i *Builder) {
			i.Topics, i.Options.RetryTopics = []string{"orders-again"}, []string{"orders-again"}
		}, RefusedTopic},
		{"another id", id, set("message_id", "8"), asIs, RefusedEvent},
		{"another binary id", aRecord("message_id", "\xff"), set("message_id", "\xfe"), asIs, RefusedEvent},
		{"an id in addition to a position", position, set("message_id", "8"), asIs, RefusedEvent},
		{"another store", id, same, func(i *Builder) { i.Store[0]++ }, RefusedStore},
		{"a copy of the store", id, same, func(i *Builder) { i.Incarnation++ }, RefusedStore},
		{"a store that was restored from this one", id, same, func(i *Builder) { i.Incarnation, i.Options.RestoredStore = 6, true }, RefusedStore},
		{"two new secrets", id, same, func(i *Builder) { i.Secrets = i.Secrets.Rotated().Rotated() }, RefusedSeal},
		{"no secret", id, same, func(i *Builder) { i.Secrets = Secrets{} }, RefusedSeal},
		{"no seal", id, without(dltSeal), asIs, RefusedSeal},
		{"a cut seal", id, set(dltSeal, "00"), asIs, RefusedSeal},
		{"a made up seal", id, set(dltSeal, "d37651a37ff9ac01aa5c510909686395"), asIs, RefusedSeal},
		{"a made up generation", id, set(dltGeneration, "3"), asIs, RefusedSeal},
		{"no generation", id, without(dltGeneration), asIs, RefusedSeal},
		{"a made up topic", id, set(dltTopic, "bills"), asIs, RefusedSeal},
		{"a made up partition", id, set(dltPartition, "8"), asIs, RefusedSeal},
		{"a made up offset", id, set(dltOffset, "90210"), asIs, RefusedSeal},
		{"a made up incarnation", id, set(dltIncarnation, "8"), func(i *Builder) { i.Incarnation = 8 }, RefusedSeal},
		{"a made up position", position, set(dltEventID, positionID(t, 4712)), asIs, RefusedSeal},
		{"a made up time", position, set(dltEventTime, "2025-05-14T12:00:00.123Z"), asIs, RefusedSeal},
		{"a made up fraction", position, set(dltEventTime, "2025-05-07T12:00:00.124Z"), asIs, RefusedSeal},
		{"a made up rule", position, set(dltTimeRule, "header"), asIs, RefusedSeal},
		{"no time", id, without(dltEventTime), asIs, RefusedHeaders},
		{"another version", id, set(dltVersion, "2"), asIs, RefusedHeaders},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := sentBack(aLetter(t, tt.record).record(Neutral))
			tt.change(r)
			i := anIssuer
			tt.issuer(&i)
			p, why := i.Replay(r, identified(t, r))
			quiet := strings.HasPrefix(tt.name, "another group") || strings.HasPrefix(tt.name, "another scope") || tt.name == "a letter without an event"
			if why != tt.want || (p != nil) != (why == "" && !quiet) {
				t.Errorf("accepted %v, refused %q, want %q", p != nil, why, tt.want)
			}
			if why != "" && len(why.Error()) < 60 {
				t.Errorf("the refusal says only: %v", why)
			}
		})
	}
}

func TestShortSecretsAreRejected(t *testing.T) {
	long, short := aSecret, aSecret[1:]
	for _, tt := range []struct {
		current, previous []byte
		want              bool
	}{{long, nil, true}, {long, long, true}, {nil, nil, false}, {short, nil, false}, {long, short, false}, {nil, long, false}} {
		s, err := NewSecrets(tt.current, tt.previous)
		if (err == nil) != tt.want {
			t.Errorf("%d and %d bytes: %v", len(tt.current), len(tt.previous), err)
			continue
		}
		if got, err := ParseSecrets(s.Bytes()); tt.want && (err != nil || !reflect.DeepEqual(got, s)) {
			t.Errorf("%v, %v after a round trip, want %v", got, err, s)
		}
	}
	for _, n := range []int{0, 31, 33, 63, 96} {
		if _, err := ParseSecrets(make([]byte, n)); err == nil {
			t.Errorf("%d stored bytes are accepted", n)
		}
	}
}

// An event that was never claimed is under the seal too: a position could be forged otherwise.
func TestLetterThatWasNeverClaimed(t *testing.T) {
	for _, r := range []*kgo.Record{aRecord("message_id", "7"), aRecord()} {
		f := aFailure(identified(t, r))
		f.Claimed, f.Generation = false, 0
		dead := anIssuer.Letter(r, nil, f, Neutral)
		if _, ok := values(t, dead)[dltGeneration]; ok {
			t.Error("a generation without a claim")
		}
		back := sentBack(dead)
		p, why := anIssuer.Replay(back, identified(t, back))
		if p == nil || p.Sealed.Claimed || p.Sealed.Origin.Offset != 4711 {
			t.Errorf("%+v, %q", p, why)
		}
	}
}

// Rules.NoPosition was set after the letter was written.
func TestReplayOfAPositionWithoutAnIDOfItsOwnReopens(t *testing.T) {
	r := sentBack(aLetter(t, aRecord()).record(Neutral))
	o := identify.Rules{NoPosition: true}
	own, err := o.Identify(r, aTopicID)
	if !errors.Is(err, identify.ErrNoID) {
		t.Fatal(err)
	}
	if p, why := anIssuer.Replay(r, own); p == nil {
		t.Errorf("not accepted: %q", why)
	}
}

func TestSealsOfDifferentClaimsDiffer(t *testing.T) {
	base := Sealed{Group: "a", Scope: "bc", Generation: 1, Event: identify.Identity{ID: []byte("x"), Time: aTime, IDRule: identify.IDHeader, TimeRule: identify.TimeRecord}}
	moved := base
	moved.Group, moved.Scope = "ab", "c"
	if bytes.Equal(base.seal(aSecret), moved.seal(aSecret)) {
		t.Error("a, bc and ab, c have the same seal")
	}
	if l := unsealed.letter(aRecord(), nil, aFailure(base.Event)); l.Seal != nil {
		t.Errorf("sealed without a secret: %x", l.Seal)
	}
	base.Origin.Topic = "orders"
	p := Replay{Sealed: base, seal: base.seal(nil)}
	open := Builder{Group: "a", Scope: "bc"}
	if why := open.refuses(&p, aRecord(), base.Event); why != RefusedSeal {
		t.Errorf("a seal made without a secret is refused with %q", why)
	}
}

func TestRecordThatIsNoReplayCostsNothing(t *testing.T) {
	r := aRecord("trace", "x", "message_id", "7")
	if n := testing.AllocsPerRun(100, func() { anIssuer.Replay(r, identify.Identity{}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Any headers: no panic, and each replay that is read is written in the same form.
func FuzzReplay(f *testing.F) {
	add := func(r *kgo.Record) {
		var o identify.Rules
		id, err := o.Identify(r, aTopicID)
		if err != nil {
			f.Fatal(err)
		}
		var b []byte
		for _, h := range anIssuer.letter(r, nil, aFailure(id)).record(Neutral).Headers {
			b = appendString(appendString(b, h.Key), string(h.Value))
		}
		f.Add(b)
	}
	add(aRecord("message_id", "7"))
	add(aRecord("ce_id", "7", "ce_source", "/s", "ce_time", "2025-05-07T12:00:00.5Z"))
	add(aRecord())
	f.Fuzz(func(t *testing.T, b []byte) {
		r := aRecord()
		for d := newDecoder(b); len(d.Decoder.Rest) > 0 && !d.Decoder.Bad; {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: d.text(), Value: d.Decoder.Bytes()})
		}
		p, ok := replayOf(r)
		if !ok {
			return
		}
		issuer := func(secret []byte) *Builder {
			return &Builder{Group: p.Sealed.Group, Scope: p.Sealed.Scope, Store: p.Sealed.Store, Incarnation: p.Sealed.Incarnation, Secrets: Secrets{current: secret}}
		}
		r.Topic = p.Sealed.Origin.Topic
		if why := issuer([]byte("another secret than that of the seal")).refuses(&p, r, identify.Identity{}); why != RefusedSeal {
			t.Fatalf("%+v: %q", p, why)
		}
		q, ok := replayOf(issuer(aSecret).Letter(r, &p, Failure{Event: p.Sealed.Event, Claimed: p.Sealed.Claimed, Generation: p.Sealed.Generation}, Neutral))
		if q.seal = p.seal; !ok || !reflect.DeepEqual(p, q) {
			t.Fatalf("%+v, then %+v, %v", p, q, ok)
		}
	})
}
