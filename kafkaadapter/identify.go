package kafkaadapter

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What can keep a record from being told from others. Each is about this one record and is the same on every delivery of
// it, but for ErrNoTopicID.
var (
	// ErrNoID says that a record has no id, and that its position is not to stand in for one (Identify.NoPosition).
	ErrNoID = errors.New("hapax: the record has no event id: have its producer set one of Identify.IDHeaders, or read it from the payload with Identify.Payload")

	// ErrNoTime says that a record has no time: no header, no id with a time in it, and no timestamp of its own.
	ErrNoTime = errors.New("hapax: the record has no time: have its producer set one of Identify.TimeHeaders or the record's timestamp")

	// ErrBadPayload says that a payload is not what it has to be for an id to be read from it: a CloudEvents event in
	// JSON, or what Identify.Payload expects.
	ErrBadPayload = errors.New("hapax: no event id can be read from the record's payload")

	// ErrNoTopicID says that a position was to stand in for an id and the topic's own id is not known. A topic that is
	// created again repeats its positions, and its records would be taken for duplicates. Brokers tell topic ids since
	// Kafka 3.1. It is not the record's fault: with the topic's id it can be judged.
	ErrNoTopicID = errors.New("hapax: the position cannot stand in for an event id, because the broker does not tell the topic's id (Kafka 3.1 does): set Identify.NoPosition or have producers set ids")
)

// Names of headers that stand for more than their own value.
const (
	// CloudEventsID in Identify.IDHeaders stands for the identity of a CloudEvents event, its source together with its
	// id: the headers ce_source and ce_id, or the payload in structured mode.
	CloudEventsID = "ce_id"
	// CloudEventsTime in Identify.TimeHeaders stands for the time of a CloudEvents event, in a header or in the payload.
	CloudEventsTime = "ce_time"
)

var (
	defaultIDHeaders   = []string{CloudEventsID, "id", "message_id", "idempotency-key", "correlation_id", "_watermill_message_uuid"}
	defaultTimeHeaders = []string{CloudEventsTime, "event_time", "timestamp"}
)

// Identify says how the id and the time of the event in a record are found. The zero value asks, in this order,
//
//   - for the id: the headers ce_id together with ce_source (or a CloudEvents payload), id, message_id, idempotency-key,
//     correlation_id, _watermill_message_uuid; then the record's position.
//   - for the time: the headers ce_time (or the time of a CloudEvents payload), event_time, timestamp; then an id that is
//     a UUIDv7 or a ULID; then the record's timestamp.
//
// The first that tells something is taken. The names of headers are compared byte by byte, as Kafka has them: Message_ID
// is not message_id. If a header is there more than once, the last one counts. A header with an empty value counts as
// absent.
//
// An id from a header or from Payload is taken as it is, byte for byte, and all of these are one space of ids: message_id
// "7" and idempotency-key "7" are the same event, on every topic that is consumed under one scope, unless PerTopic is
// set. Ids of CloudEvents and positions are kept apart from them and from each other. A header that many events share is
// no id: in some systems correlation_id names a conversation; give IDHeaders without it there, or all but the first
// event of a conversation are duplicates.
//
// # Times
//
// A time in a header is RFC 3339, or a count since 1970 in decimal digits: milliseconds, or seconds if it is below
// 10^11 (which would be March 1973 in milliseconds, and is the year 5138 in seconds), or such a count in 8 bytes, big
// endian, as Java serializes a long. Finer counts are not read.
//
// A time that cannot be read, or lies outside the years 1 to 9999, is passed over for the next rule, and that is
// counted. Refusing the record would keep an event from its handler for a flaw that does it no harm. A wrong time never
// makes an event a duplicate: ids decide that. It can only place the event in another week than a later, mended
// delivery of it, which is then handled again.
//
// A ULID is 26 characters, not all of them digits; a UUIDv7 is the form with hyphens. Their times count from the year
// 2000 to 2099, and not if they are more than two days after the record's timestamp or more than 366 days before it, so
// that few ids of other kinds are taken for one; NoIDTime leaves them out.
type Identify struct {
	// IDHeaders are asked in this order. nil = those above; an empty list asks none.
	IDHeaders []string

	// Payload reads the id from a record that has none in its headers, and the event's time too if it can: a zero time
	// leaves that to the other rules, any other goes before them. No id (and no error) leaves it to the position. An error
	// or a panic is ErrBadPayload. It must give the same answer for the same record, changes nothing in the record, and
	// may be called from several goroutines, and for some records ahead of the one that is handled. The id is copied. nil =
	// headers and position only.
	Payload func(r *kgo.Record) (id []byte, at time.Time, err error)

	// NoPosition makes a record that has no id ErrNoID. Otherwise its position (topic id, partition, offset) stands in
	// for one: that recognises the record when it is delivered again, and not the copy that a producer sends again.
	NoPosition bool

	// PerTopic adds the topic's name to ids, for ids that are unique only within their topic.
	PerTopic bool

	// TimeHeaders are asked in this order. nil = those above; an empty list asks none.
	TimeHeaders []string

	// NoIDTime takes no time from ids that look like a UUIDv7 or a ULID and are none.
	NoIDTime bool
}

// An identity is what a record is judged by.
type identity struct {
	ID   []byte // see eventid.go; may be a part of the record
	Time time.Time

	IDRule   IDRule
	TimeRule TimeRule
	// LogTime says that the time is the record's own timestamp and that the id may come again with another one, because a
	// producer that sends the event again stamps it again: neighbouring weeks have to be looked at. A position comes
	// again with the same record only, and so with the same time.
	LogTime bool
	// BadTimes counts the times that were there and could not be read.
	BadTimes int
}

// A finding is what the first rule that applies tells about the id.
type finding struct {
	rule   IDRule
	id     []byte
	source []byte // CloudEvents only: a part of the identity

	// The time that came with the id from the payload.
	at   time.Time // Payload's; zero if it told none
	text []byte    // a CloudEvents payload's, to be parsed; nil if it has none
}

// of tells the id and the time of the event in r; topicID is that of r's topic. An error wraps one of the errors above.
func (o *Identify) of(r *kgo.Record, topicID [16]byte) (identity, error) {
	var f finding
	if err := o.find(r, &f); err != nil {
		return identity{}, err
	}
	id := identity{IDRule: f.rule}
	switch {
	case f.rule != IDPosition:
		id.ID = o.eventID(r.Topic, &f)
	case o.NoPosition:
		return identity{}, ErrNoID
	case topicID == [16]byte{}:
		return identity{}, ErrNoTopicID
	default:
		id.ID = positionID(topicID, r.Partition, r.Offset)
	}
	if !o.date(&id, r, &f) {
		return identity{}, ErrNoTime
	}
	return id, nil
}

func (o *Identify) find(r *kgo.Record, f *finding) error {
	names := o.IDHeaders
	if names == nil {
		names = defaultIDHeaders
	}
	for _, name := range names {
		if name == CloudEventsID {
			if err := cloudEvent(r, f); err != nil || f.rule != 0 {
				return err
			}
		} else if id := lastHeader(r.Headers, name); id != nil {
			f.rule, f.id = IDHeader, id
			return nil
		}
	}
	if o.Payload == nil {
		f.rule = IDPosition
		return nil
	}
	id, at, err := o.payload(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadPayload, err)
	}
	*f = finding{rule: IDPayload, id: bytes.Clone(id), at: at} // the host may use its buffer again
	if len(id) == 0 {
		f.rule = IDPosition
	}
	return nil
}

// payload calls the host's function. A panic of it is an error, since the same record would otherwise end the process
// again and again.
func (o *Identify) payload(r *kgo.Record) (id []byte, at time.Time, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic in Identify.Payload: %v", v)
		}
	}()
	return o.Payload(r)
}

// date sets the time of id. It is false if there is none.
func (o *Identify) date(id *identity, r *kgo.Record, f *finding) bool {
	if !f.at.IsZero() {
		if inYears(f.at) {
			id.Time, id.TimeRule = f.at.UTC(), TimePayload
			return true
		}
		id.BadTimes++
	}
	if o.dateByHeader(id, r, f) {
		return true
	}
	if !o.NoIDTime && f.rule != IDPosition {
		if at, rule := timeOfID(f.id); rule != 0 && nearStamp(at, r) {
			id.Time, id.TimeRule = at, rule
			return true
		}
	}
	if r.Attrs.TimestampType() < 0 || r.Timestamp.UnixMilli() < 0 || !inYears(r.Timestamp) {
		return false // -1 is Kafka's word for no timestamp
	}
	id.Time, id.TimeRule, id.LogTime = r.Timestamp.UTC(), TimeRecord, f.rule != IDPosition
	return true
}

func (o *Identify) dateByHeader(id *identity, r *kgo.Record, f *finding) bool {
	names := o.TimeHeaders
	if names == nil {
		names = defaultTimeHeaders
	}
	for _, name := range names {
		rule, text := TimeHeader, f.text
		if name == CloudEventsTime {
			rule = TimeCloudEvents
		}
		if text == nil || name != CloudEventsTime {
			text = lastHeader(r.Headers, name)
		}
		if text == nil {
			continue
		}
		if at, ok := parseTime(text); ok {
			id.Time, id.TimeRule = at, rule
			return true
		}
		id.BadTimes++
	}
	return false
}

// lastHeader returns the value of the last header of that name that has one, else nil.
func lastHeader(headers []kgo.RecordHeader, name string) []byte {
	for i := len(headers) - 1; i >= 0; i-- {
		if h := &headers[i]; h.Key == name && len(h.Value) > 0 {
			return h.Value
		}
	}
	return nil
}

// shared are headers that events have in common: as an id, each would make nearly every event a duplicate.
var shared = []string{
	"ce_source", "ce_type", "ce_specversion", "ce_subject", "ce_time", "ce_datacontenttype", "ce_dataschema",
	contentType, traceparent, "tracestate", baggageHeader,
}

// validate refuses options that cannot work or would lose events.
func (o *Identify) validate() error {
	for _, list := range []struct {
		field string
		names []string
	}{{"IDHeaders", o.IDHeaders}, {"TimeHeaders", o.TimeHeaders}} {
		for i, name := range list.names {
			switch {
			case name == "":
				return fmt.Errorf("hapax: Identify.%s[%d] is empty: give the name of a header", list.field, i)
			case slices.Contains(list.names[:i], name):
				return fmt.Errorf("hapax: Identify.%s has %q twice", list.field, name)
			case strings.HasPrefix(name, dltPrefix):
				return fmt.Errorf("hapax: Identify.%s has %q: headers that begin with %s belong to dead letters", list.field, name, dltPrefix)
			}
		}
	}
	for _, name := range o.IDHeaders {
		if slices.Contains(shared, name) {
			return fmt.Errorf("hapax: Identify.IDHeaders has %q, which many events share: they would be duplicates of one another", name)
		}
	}
	if o.NoPosition && o.Payload == nil && o.IDHeaders != nil && len(o.IDHeaders) == 0 {
		return errors.New("hapax: Identify leaves nothing to tell an id by: give IDHeaders or Payload, or allow the position")
	}
	return nil
}
