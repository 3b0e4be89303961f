package kafkaadapter

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

var (
	aSecret = []byte("32 bytes that nobody else knows.")
	aStore  = [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 15: 0x10}
)

// aFailure is what became of a record that was judged as event.
func aFailure(event identity) failure {
	return failure{
		Reason: letterAttempts, Err: fmt.Errorf("handling: %w", &fs.PathError{Op: "open", Path: "/x", Err: errors.New("gone")}),
		Attempts: 5, Group: "billing", Scope: "invoices", Event: event, Generation: 2, Store: aStore, Incarnation: 7,
	}
}

// aLetter is the dead letter of r, identified by the zero Identify.
func aLetter(t *testing.T, r *kgo.Record) *letter {
	t.Helper()
	return newLetter(r, nil, aFailure(identified(t, Identify{}, r)), aSecret)
}

// values are the headers by name; a name that is there twice fails the test.
func values(t *testing.T, r *kgo.Record) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, h := range r.Headers {
		if _, twice := all[h.Key]; twice {
			t.Errorf("header %s is there twice", h.Key)
		}
		all[h.Key] = string(h.Value)
	}
	return all
}

// sentBack is the record that a tool makes of a dead letter: the same key, value and headers, at another place and time.
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
		{Key: "kafka_dlt-original-topic", Value: []byte("somebody's")}, {Key: "hapax", Value: []byte("not reserved")},
	}
	for _, tt := range []struct{ key, value []byte }{{nil, nil}, {[]byte{}, []byte{}}, {[]byte("k\xff"), []byte("v\x00")}} {
		r := &kgo.Record{Topic: "orders", Timestamp: aTime, Key: tt.key, Value: tt.value, Headers: slices.Clone(headers)}
		dead := aLetter(t, r).record("orders-dlt", NeutralHeaders)
		if dead.Topic != "orders-dlt" || !reflect.DeepEqual(dead.Key, tt.key) || !reflect.DeepEqual(dead.Value, tt.value) {
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

// Tools read these: they change with their version only.
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
		"hapax_dlt_seal":                    "d37651a37ff9ac01aa5c510909686394",
		"hapax_dlt_store":                   "01234567-89ab-cdef-0000-000000000010",
		"hapax_dlt_incarnation":             "7",
	}
	got := values(t, aLetter(t, aRecord("message_id", "7")).record("orders-dlt", NeutralHeaders))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestWhatIsNotThereIsLeftOut(t *testing.T) {
	l := newLetter(aRecord(), nil, failure{Reason: letterUndecodable, Group: "billing", Scope: "invoices"}, aSecret)
	got := values(t, l.record("orders-dlt", NeutralHeaders))
	for _, name := range []string{dltEventID, dltEventTime, dltIDRule, dltTimeRule, dltGeneration, dltSeal, dltError, dltErrorType} {
		if v, there := got[name]; there {
			t.Errorf("%s is %q", name, v)
		}
	}
	if l.Seal != nil {
		t.Errorf("there is nothing to seal, and the seal is %x", l.Seal)
	}
	if _, ok := replayOf(sentBack(l.record("orders-dlt", NeutralHeaders))); ok {
		t.Error("without an event it is a replay")
	}
}

func TestSpringReadsItsOwnNamesAndEncodings(t *testing.T) {
	r := aRecord("message_id", "7", "kafka_dlt-original-offset", "older")
	r.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{TimestampType: 1})
	got := values(t, aLetter(t, r).record("orders-dlt", SpringHeaders))
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
	f := aFailure(identity{})
	f.Err = nil
	got := values(t, newLetter(aRecord(), nil, f, aSecret).record("orders-dlt", ConnectHeaders))
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

func TestTextIsCutBetweenCharacters(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"12345678", "12345678"},
		{"123456789", "12345…"},
		{"1234é6789", "1234…"}, // the é would end in byte 6
		{"123é56789", "123é…"},
		{"😀😀😀", "😀…"},
		{"a\xffb", "a\uFFFDb"},
		{"123\xff\xfe\xfd", "123\uFFFD"},
	} {
		if got := capped(tt.in, 8); got != tt.want || len(got) > 8 || !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, want %q", tt.in, got, tt.want)
		}
	}
	l := newLetter(aRecord(), nil, failure{Err: errors.New(strings.Repeat("é", MaxLetterText))}, nil)
	if len(l.Error) > MaxLetterText || len(l.Error) < MaxLetterText-8 {
		t.Errorf("%d bytes of an error", len(l.Error))
	}
}

// The comment of letter.record says how much larger the records of the dead-letter topic are.
func TestHeadersTakeNoMoreThanIsSaid(t *testing.T) {
	f := aFailure(identity{ID: []byte("7"), Time: aTime, IDRule: IDCloudEventsStructured, TimeRule: TimeCloudEvents})
	f.Err = errors.New(strings.Repeat("x", 2*MaxLetterText))
	f.Attempts, f.Generation, f.Incarnation = math.MaxUint32, math.MaxUint64, math.MaxUint64
	r := &kgo.Record{Topic: "t", Partition: math.MaxInt32, Offset: math.MaxInt64, Timestamp: time.UnixMilli(math.MinInt64)}
	l := newLetter(r, nil, f, aSecret)
	l.ErrorType = strings.Repeat("x", maxErrorType)
	for names, most := range map[LetterHeaders]int{NeutralHeaders: 4 << 10, SpringHeaders: 10 << 10, ConnectHeaders: 10 << 10} {
		size := 0
		for _, h := range l.record("t-dlt", names).Headers {
			size += len(h.Key) + len(h.Value) + 2*3 // the lengths
		}
		if size > most || size < most/2 {
			t.Errorf("%d: %d bytes, %d are said", names, size, most)
		}
	}
}

// The dead letter of a replay says what the first one said of the event, and its headers do not grow.
func TestHeadersOfALettersReplayAreReplaced(t *testing.T) {
	for _, names := range []LetterHeaders{NeutralHeaders, SpringHeaders, ConnectHeaders} {
		first := aLetter(t, aRecord("x", "y")) // known by its position
		dead := first.record("orders-dlt", names)
		for range 3 {
			again := sentBack(dead)
			p, ok := replayOf(again)
			if !ok {
				t.Fatal("not a replay")
			}
			f := aFailure(p.Event)
			f.Generation = p.Generation + 1
			dead = newLetter(again, &p, f, aSecret).record("orders-dlt", names)
		}
		want := values(t, first.record("orders-dlt", names))
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

func TestHeadersThatSomebodyMadeUpDoNotStay(t *testing.T) {
	r := aRecord("message_id", "7", "hapax_dlt_original_topic", "else", "hapax_dlt_nonsense", "x")
	got := values(t, aLetter(t, r).record("orders-dlt", NeutralHeaders))
	if got[dltTopic] != "orders" || got["hapax_dlt_nonsense"] != "" {
		t.Errorf("%q", got)
	}
	if len(r.Headers) != 3 || r.Headers[1].Key != "hapax_dlt_original_topic" || r.Headers[2].Key != "hapax_dlt_nonsense" {
		t.Errorf("the record's own headers are now %v", r.Headers)
	}
}

func TestReplayTellsWhatTheLetterSaid(t *testing.T) {
	for name, r := range map[string]*kgo.Record{
		"header":     aRecord("message_id", "7"),
		"position":   aRecord(),
		"CloudEvent": aRecord("ce_id", "7", "ce_source", "/s", "ce_time", "2025-05-07T14:00:00.123456789+02:00"),
		"UUIDv7":     aRecord("id", "01970000-0000-7abc-8def-000000000000"),
	} {
		l := aLetter(t, r)
		p, ok := replayOf(sentBack(l.record("orders-dlt", SpringHeaders)))
		if !ok {
			t.Errorf("%s: not a replay", name)
		}
		want := replay{Origin: engine.Origin{Topic: "orders", Partition: 3, Offset: 4711}, Stamp: stampOf(r), sealed: l.sealed, Seal: l.Seal}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, want %+v", name, p, want)
		}
	}
}

func TestHeadersThatMakeNoSenseAreNoReplay(t *testing.T) {
	dead := aLetter(t, aRecord("message_id", "7")).record("orders-dlt", NeutralHeaders)
	for _, tt := range []struct{ name, value string }{
		{dltVersion, "2"}, {dltVersion, ""}, {dltTopic, ""},
		{dltPartition, "-1"}, {dltPartition, "x"}, {dltPartition, "2147483648"}, {dltPartition, "4294967296"}, {dltPartition, ""},
		{dltOffset, "-1"}, {dltOffset, "1e3"}, {dltOffset, "9223372036854775808"},
		{dltTimestamp, "now"}, {dltTimestampType, "Create"},
		{dltGroup, ""}, {dltScope, ""},
		{dltEventID, ""}, {dltEventID, strings.Repeat("x", engine.LimitIDBytes+1)},
		{dltEventTime, "yesterday"}, {dltEventTime, "0000-01-01T00:00:00Z"}, {dltEventTime, ""},
		{dltIDRule, "id_rule(0)"}, {dltTimeRule, ""}, {dltTimeRule, "sundial"},
		{dltGeneration, "-1"}, {dltGeneration, "18446744073709551616"}, {dltGeneration, ""},
	} {
		r := sentBack(dead)
		for i := range r.Headers {
			if r.Headers[i].Key == tt.name {
				r.Headers[i].Value = []byte(tt.value)
			}
		}
		if p, ok := replayOf(r); ok || !reflect.DeepEqual(p, replay{}) {
			t.Errorf("%s %q: %+v", tt.name, tt.value, p)
		}
	}
	for _, name := range []string{dltError, dltErrorType, dltReason, dltAttempts, dltStore, dltIncarnation, dltSeal} {
		r := sentBack(dead)
		r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
		if _, ok := replayOf(r); !ok {
			t.Errorf("without %s it is no replay", name)
		}
	}
}

func TestReplayReopensWhatTheStoreSealed(t *testing.T) {
	other := func(change func(r *kgo.Record)) func(*kgo.Record) {
		return func(r *kgo.Record) { change(r) }
	}
	set := func(name, value string) func(*kgo.Record) {
		return func(r *kgo.Record) { r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)}) }
	}
	same := func(*kgo.Record) {}
	mended := other(func(r *kgo.Record) { r.Value = []byte("mended") })
	elsewhere := other(func(r *kgo.Record) { r.Topic = "orders-again" })
	tests := []struct {
		name   string
		record *kgo.Record
		change func(*kgo.Record)
		group  string
		scope  string
		secret string
		want   bool
	}{
		{"header", aRecord("message_id", "7"), same, "billing", "invoices", string(aSecret), true},
		{"position", aRecord(), same, "billing", "invoices", string(aSecret), true},
		{"a mended payload", aRecord("message_id", "7"), mended, "billing", "invoices", string(aSecret), true},
		{"its own id, on another topic", aRecord("message_id", "7"), elsewhere, "billing", "invoices", string(aSecret), true},

		{"a position, on another topic", aRecord(), elsewhere, "billing", "invoices", string(aSecret), false},
		{"another id", aRecord("message_id", "7"), set("message_id", "8"), "billing", "invoices", string(aSecret), false},
		{"an id beside a position", aRecord(), set("message_id", "8"), "billing", "invoices", string(aSecret), false},
		{"without the id that it had", aRecord("message_id", "7"), other(func(r *kgo.Record) { r.Headers = r.Headers[1:] }),
			"billing", "invoices", string(aSecret), false},
		{"another group", aRecord("message_id", "7"), same, "shipping", "invoices", string(aSecret), false},
		{"another scope", aRecord("message_id", "7"), same, "billing", "parcels", string(aSecret), false},
		{"another store", aRecord("message_id", "7"), same, "billing", "invoices", "another secret", false},
		{"no secret", aRecord("message_id", "7"), same, "billing", "invoices", "", false},
		{"no seal", aRecord("message_id", "7"), set(dltSeal, "00"), "billing", "invoices", string(aSecret), false},
		{"a made up seal", aRecord("message_id", "7"), set(dltSeal, "d37651a37ff9ac01aa5c510909686395"), "billing", "invoices", string(aSecret), false},
		{"a made up generation", aRecord("message_id", "7"), set(dltGeneration, "3"), "billing", "invoices", string(aSecret), false},
		{"a made up position", aRecord(), set(dltEventID, string(positionID(aTopicID, 3, 4712))), "billing", "invoices", string(aSecret), false},
		{"a made up time", aRecord(), set(dltEventTime, "2025-05-14T12:00:00.123Z"), "billing", "invoices", string(aSecret), false},
		{"a made up fraction", aRecord(), set(dltEventTime, "2025-05-07T12:00:00.124Z"), "billing", "invoices", string(aSecret), false},
		{"a made up rule", aRecord(), set(dltTimeRule, "header"), "billing", "invoices", string(aSecret), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := sentBack(aLetter(t, tt.record).record("orders-dlt", NeutralHeaders))
			tt.change(r)
			p, ok := replayOf(r)
			if !ok {
				t.Fatal("not a replay")
			}
			own := identified(t, Identify{}, r)
			if got := p.reopens(r, own, tt.group, tt.scope, []byte(tt.secret)); got != tt.want {
				t.Errorf("reopens: %v, want %v", got, tt.want)
			}
		})
	}
}

// Identify.NoPosition was set after the letter was written.
func TestReplayOfAPositionWithoutAnIDOfItsOwnReopens(t *testing.T) {
	r := sentBack(aLetter(t, aRecord()).record("orders-dlt", NeutralHeaders))
	p, _ := replayOf(r)
	o := Identify{NoPosition: true}
	own, err := o.of(r, aTopicID)
	if !errors.Is(err, ErrNoID) || !p.reopens(r, own, "billing", "invoices", aSecret) {
		t.Errorf("%v, and it does not reopen", err)
	}
}

func TestSealsOfDifferentClaimsDiffer(t *testing.T) {
	base := sealed{Group: "a", Scope: "bc", Generation: 1, Event: identity{ID: []byte("x"), Time: aTime, IDRule: IDHeader, TimeRule: TimeRecord}}
	moved := base
	moved.Group, moved.Scope = "ab", "c"
	if bytes.Equal(base.seal(aSecret), moved.seal(aSecret)) {
		t.Error("a, bc and ab, c have the same seal")
	}
	if l := newLetter(aRecord(), nil, aFailure(base.Event), nil); l.Seal != nil {
		t.Errorf("sealed without a secret: %x", l.Seal)
	}
	p := replay{Origin: engine.Origin{Topic: "orders"}, sealed: base, Seal: base.seal(nil)}
	if p.reopens(aRecord(), identity{IDRule: IDHeader, ID: []byte("x")}, "a", "bc", nil) {
		t.Error("a seal that everybody can make is believed")
	}
}

func TestNoReplayCostsNothing(t *testing.T) {
	r := aRecord("trace", "x", "message_id", "7")
	if n := testing.AllocsPerRun(100, func() { replayOf(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Pending letters are in stores: these bytes change with their version only.
func TestLetterEncodingIsGolden(t *testing.T) {
	r := aRecord("message_id", "7")
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "nothing"}, kgo.RecordHeader{Key: "empty", Value: []byte{}})
	r.Key = nil
	for _, tt := range []struct {
		name string
		l    *letter
		want string
	}{
		{"with an event", aLetter(t, r), "01066f7264657273" + "06" + "ce49" + "f6c9efa9d565" + "00" + "00" + "0276" +
			"03" + "0a6d6573736167655f69640237" + "076e6f7468696e6700" + "05656d70747901" +
			"08617474656d707473" + "132a6572726f72732e6572726f72537472696e67" + "1768616e646c696e673a206f70656e202f783a20676f6e65" + "05" +
			"0762696c6c696e67" + "08696e766f69636573" + "02" + "0137" + "80adda810d" + "c0a9d33a" + "0106" +
			"11" + "d37651a37ff9ac01aa5c510909686394" + "0123456789abcdef0000000000000010" + "07"},
		{"without", newLetter(&kgo.Record{Topic: "t", Value: []byte{}, Timestamp: time.UnixMilli(0)}, nil, failure{Reason: "no"}, nil),
			"010174" + "00" + "00" + "00" + "00" + "00" + "01" + "00" + "026e6f" + "00" + "00" + "00" + "00" + "00" + "00" + "00" +
				"00000000000000000000000000000000" + "00"},
	} {
		if got := hex.EncodeToString(appendLetter(nil, tt.l)); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
		b, _ := hex.DecodeString(tt.want)
		if l, err := parseLetter(b); err != nil || !reflect.DeepEqual(l, tt.l) {
			t.Errorf("%s:\ngot  %+v, %v\nwant %+v", tt.name, l, err, tt.l)
		}
	}
}

// What is counted and not kept makes no difference to what is read back.
func TestLetterForgetsTimesThatCouldNotBeRead(t *testing.T) {
	r := aRecord("message_id", "7", "ce_time", "yesterday")
	l := aLetter(t, r)
	got, err := parseLetter(appendLetter(nil, l))
	if err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("%+v, %v; want %+v", got, err, l)
	}
}

// Whatever a record is, its letter can be read again: one that cannot would hold its partition for ever.
func TestEveryLetterIsReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 40))
		r := &kgo.Record{
			Topic: rapid.String().Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition"), Offset: rapid.Int64().Draw(t, "offset"),
			Timestamp: time.UnixMilli(rapid.Int64().Draw(t, "timestamp")), Key: some.Draw(t, "key"), Value: some.Draw(t, "value"),
			Attrs: kgo.NewRecordAttrs(kgo.RecordAttrsOpts{TimestampType: rapid.Int8Range(-1, 1).Draw(t, "timestamp type")}),
		}
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			key := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"message_id", "ce_id", "timestamp", dltGroup})).Draw(t, "name")
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: some.Draw(t, "header")})
		}
		f := failure{
			Reason: letterReason(rapid.String().Draw(t, "reason")), Attempts: rapid.Uint32().Draw(t, "attempts"),
			Group: rapid.String().Draw(t, "group"), Scope: rapid.String().Draw(t, "scope"),
			Generation: rapid.Uint64().Draw(t, "generation"), Incarnation: rapid.Uint64().Draw(t, "incarnation"),
			Event: identity{
				ID:     make([]byte, rapid.SampledFrom([]int{0, 1, engine.LimitIDBytes, engine.LimitIDBytes + 1}).Draw(t, "id")),
				Time:   time.Unix(rapid.Int64Range(-1<<37, 1<<38).Draw(t, "time"), rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds")),
				IDRule: IDRule(rapid.IntRange(0, idRuleCount).Draw(t, "id rule")), TimeRule: TimeRule(rapid.IntRange(0, timeRuleCount).Draw(t, "time rule")),
			},
		}
		if text := rapid.String().Draw(t, "error"); text != "" {
			f.Err = errors.New(text)
		}
		l := newLetter(r, nil, f, rapid.SampledFrom([][]byte{nil, aSecret}).Draw(t, "secret"))
		got, err := parseLetter(appendLetter(nil, l))
		if err != nil || !bytes.Equal(appendLetter(nil, got), appendLetter(nil, l)) {
			t.Fatalf("%+v, %v; want %+v", got, err, l)
		}
		if !reflect.DeepEqual(got.record("t", SpringHeaders), l.record("t", SpringHeaders)) {
			t.Fatalf("%+v; want %+v", got.record("t", SpringHeaders), l.record("t", SpringHeaders))
		}
	})
}

func TestLettersOfAnySizeComeBack(t *testing.T) {
	r := aRecord()
	r.Value = bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	l := aLetter(t, r)
	b := appendLetter([]byte("before"), l)
	got, err := parseLetter(b[len("before"):])
	if err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("%v", err)
	}
}

func TestDamagedLettersAreRefused(t *testing.T) {
	good := appendLetter(nil, aLetter(t, aRecord("message_id", "7")))
	refused := func(name string, b []byte) {
		t.Helper()
		if l, err := parseLetter(b); !errors.Is(err, errLetter) || l != nil {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	for n := range good {
		refused(fmt.Sprintf("cut after %d bytes", n), good[:n])
	}
	refused("longer", append(slices.Clone(good), 0))
	refused("another version", append([]byte{2}, good[1:]...))
	at := bytes.LastIndex(good, []byte{byte(IDHeader), byte(TimeRecord)})
	for _, rules := range [][]byte{{0, 1}, {6, 1}, {1, 0}, {1, 7}} {
		refused(fmt.Sprintf("rules %v", rules), slices.Concat(good[:at], rules, good[at+2:]))
	}
	headers := bytes.Index(good, []byte("\x01\x0amessage_id"))
	refused("overlong", slices.Concat(good[:headers], []byte{0x81, 0}, good[headers+1:]))

	// A letter whose fields are set one by one.
	with := func(field int, value string) []byte {
		fields := []string{
			"01", "0174", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", "00", // version to generation
			"0178", "00", "00", "0101", "00", strings.Repeat("00", 16), "00", // id, time, rules, seal, store, incarnation
		}
		fields[field] = value
		b, err := hex.DecodeString(strings.Join(fields, ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if _, err := parseLetter(with(0, "01")); err != nil {
		t.Fatalf("the letter that is to be damaged: %v", err)
	}
	for _, tt := range []struct {
		name  string
		field int
		value string
	}{
		{"partition 2^31", 2, "8080808010"},
		{"offset 2^63", 3, "80808080808080808002"},
		{"timestamp type 2", 5, "04"},
		{"timestamp type -2", 5, "03"},
		{"attempts 2^32", 12, "8080808010"},
		{"year 10000", 17, "8086a2ffdf0e"},
		{"year 0", 17, "81dc8ff9ce03"},
		{"a second of nanoseconds", 18, "8094ebdc03"},
	} {
		refused(tt.name, with(tt.field, tt.value))
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	refused("16 million headers", with(8, "80808008"))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes allocated for headers that are not there", got)
	}
}

func FuzzParseLetter(f *testing.F) {
	r := &kgo.Record{Topic: "orders", Timestamp: aTime, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("7")}, {Key: "x"}}}
	var o Identify
	id, _ := o.of(r, aTopicID)
	f.Add(appendLetter(nil, newLetter(r, nil, aFailure(id), aSecret)))
	f.Add(appendLetter(nil, newLetter(r, nil, failure{}, nil)))
	f.Add([]byte{letterCode})
	f.Fuzz(func(t *testing.T, b []byte) {
		kept := bytes.Clone(b)
		l, err := parseLetter(b)
		if !bytes.Equal(b, kept) {
			t.Fatalf("the input was changed")
		}
		if err != nil {
			if !errors.Is(err, errLetter) {
				t.Fatalf("not the stated error: %v", err)
			}
			return
		}
		if again := appendLetter(nil, l); !bytes.Equal(again, b) {
			t.Fatalf("%x is accepted, but would be written as %x", b, again)
		}
		l.record("t", SpringHeaders)
	})
}

// Whatever the headers say: no panic; and what is taken for a replay would be written so that it reads the same.
func FuzzReplay(f *testing.F) {
	add := func(r *kgo.Record) {
		var o Identify
		id, err := o.of(r, aTopicID)
		if err != nil {
			f.Fatal(err)
		}
		var b []byte
		for _, h := range newLetter(r, nil, aFailure(id), aSecret).record("t", NeutralHeaders).Headers {
			b = appendBytes(appendString(b, h.Key), h.Value)
		}
		f.Add(b)
	}
	add(aRecord("message_id", "7"))
	add(aRecord("ce_id", "7", "ce_source", "/s", "ce_time", "2025-05-07T12:00:00.5Z"))
	add(aRecord())
	f.Fuzz(func(t *testing.T, b []byte) {
		r := aRecord()
		for d := (decoder{rest: b}); len(d.rest) > 0 && !d.bad; {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: d.text(), Value: d.bytes()})
		}
		p, ok := replayOf(r)
		if !ok {
			return
		}
		if p.reopens(r, identity{}, "billing", "invoices", []byte("not the secret that sealed it")) {
			t.Fatalf("%+v reopens", p)
		}
		l := newLetter(r, &p, failure{Group: p.Group, Scope: p.Scope, Event: p.Event, Generation: p.Generation}, aSecret)
		q, ok := replayOf(l.record("t", NeutralHeaders))
		if q.Seal = p.Seal; !ok || !reflect.DeepEqual(p, q) {
			t.Fatalf("%+v, then %+v, %v", p, q, ok)
		}
	})
}
