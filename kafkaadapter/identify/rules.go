package identify

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

// Names of headers that mean more than their own value.
const (
	// CloudEventsID in Rules.IDHeaders means the identity of a CloudEvents event, its source
	// together with its id: the headers ce_source and ce_id, or the payload in structured mode.
	CloudEventsID = "ce_id"
	// CloudEventsTime in Rules.TimeHeaders means the time of a CloudEvents event, in a header or in
	// the payload.
	CloudEventsTime = "ce_time"
)

// DebeziumID is the header in which Debezium's outbox event router puts the id of an event. It is
// not among the default headers, because other producers use the name for ids that many events
// share. For topics that the router writes, set Rules.IDHeaders to
// append(DefaultIDHeaders(), DebeziumID).
const DebeziumID = "id"

// The default headers. Each identifies one event. The headers of this module come first.
var (
	defaultIDHeaders   = []string{correlation.MessageID, correlation.Header, CloudEventsID, "message_id", "_watermill_message_uuid"}
	defaultTimeHeaders = []string{correlation.MessageTime, CloudEventsTime, "event_time"}
)

// DefaultIDHeaders returns a copy of the list that Rules.IDHeaders replaces, to add a name to it.
func DefaultIDHeaders() []string { return slices.Clone(defaultIDHeaders) }

// DefaultTimeHeaders returns a copy of the list that Rules.TimeHeaders replaces, to add a name to it.
func DefaultTimeHeaders() []string { return slices.Clone(defaultTimeHeaders) }

// Rules say how the id and the time of the event in a record are found. The zero value looks, in
// this order,
//
//   - for the id: the header correlation.MessageID, by which package outbox names the message, before
//     all that the application has forwarded with it; correlation.Header, which EnsureID sets; ce_id
//     together with ce_source (or a CloudEvents payload); message_id, _watermill_message_uuid; a
//     payload that is a CloudEvents event in JSON although no header says so; then the record's
//     position.
//   - for the time: the headers correlation.MessageTime, ce_time (or the time of a CloudEvents
//     payload), event_time; then an id that is a UUIDv7 or a ULID; then the record's timestamp.
//
// Payload, if set, precedes all of them. The first rule that finds a value is used. The names of
// headers are compared byte by byte, as in Kafka: Message_ID is not message_id. Only content-type,
// which says that the payload is a CloudEvents event, may be in any case of letters, with a hyphen,
// an underscore or neither. If a header is repeated, the last one counts. A header with an empty
// value counts as absent.
//
// An id from a header or from Payload is used unchanged, byte for byte, and all of these ids share
// one space: message_id "7" and hapax_correlation_id "7" are the same event, on every topic that is
// consumed under one scope, unless PerTopic is set. Ids of CloudEvents and positions are separate
// from them and from each other.
//
// A header that many events share is not an id: all but the first of those events would be
// duplicates. And a header that differs between the attempts to send one event is not its time. So
// these are read only if they are listed: correlation_id, which names a conversation in many systems;
// idempotency-key, which often names a request that causes several events; the bare name id, in
// which Debezium's outbox event router puts its id (DebeziumID); timestamp, which many producers
// stamp for each attempt.
//
// # Times
//
// A time in a header is RFC 3339, or a count since 1970 in decimal digits: milliseconds, or seconds
// if it is below 10^11 (which would be March 1973 in milliseconds, and is the year 5138 in
// seconds), or such a count in 8 bytes, big endian, as Java serializes a long. Finer counts are not
// read.
//
// A time that cannot be parsed, or is outside the years 1 to 9999, is counted, and the next rule is
// tried. Rejecting the record would keep an event from its handler because of a harmless error. A
// wrong time never makes an event a duplicate: ids decide that. It can only put the event into
// another week than a later delivery with a corrected time, which is then handled again.
//
// A ULID has 26 characters that are not all digits; a UUIDv7 is recognised in its form with
// hyphens. Their times are used for the years 2000 to 2099, and only if they are at most two days
// after the record's timestamp and at most 366 days before it, so that few ids of other kinds are
// mistaken for one. A time from Payload or a header precedes them.
type Rules struct {
	// IDHeaders are tried in this order. nil = DefaultIDHeaders; an empty list uses none.
	IDHeaders []string

	// Payload returns the id, and the event's time if possible; it is called before the headers are
	// read. If it returns no id and no error, the id comes from the headers or the position. If it
	// returns a zero time, the other rules give the time. An error or a panic is ErrBadPayload, and
	// the record is undecodable, unless the error is marked by kafkaadapter.Transient: then the
	// record is identified again after a backoff. Payload must return the same for the same record
	// and must not change the record. It may be called from several goroutines, and earlier than
	// for the record that is being handled. The id is copied. nil = headers and position only.
	Payload func(r *kgo.Record) (id []byte, at time.Time, err error)

	// NoPosition makes a record that has no id ErrNoID. Otherwise its position (topic id,
	// partition, offset) is its id: this identifies the record when it is delivered again, but not
	// a copy that a producer sends again.
	NoPosition bool

	// PerTopic adds the topic's name to ids, for ids that are unique only within their topic.
	PerTopic bool

	// TimeHeaders are tried in this order. nil = DefaultTimeHeaders; an empty list uses none.
	TimeHeaders []string
}

// shared are headers that many events share: as an id, each would make nearly every event a
// duplicate.
var shared = []string{
	"ce_source", "ce_type", "ce_specversion", "ce_subject", "ce_time", "ce_datacontenttype", "ce_dataschema",
	contentType, "traceparent", "tracestate", "baggage",
}

// Validate rejects rules that cannot work or would lose events.
func (o *Rules) Validate() error {
	for _, list := range []struct {
		field string
		names []string
	}{{"IDHeaders", o.IDHeaders}, {"TimeHeaders", o.TimeHeaders}} {
		for i, name := range list.names {
			switch {
			case name == "":
				return fmt.Errorf("hapax: Rules.%s[%d] is empty: give the name of a header", list.field, i)
			case slices.Contains(list.names[:i], name):
				return fmt.Errorf("hapax: Rules.%s has %q twice", list.field, name)
			}
		}
	}
	for _, name := range o.IDHeaders {
		if slices.Contains(shared, name) {
			return fmt.Errorf("hapax: Rules.IDHeaders has %q, which many events share: they would be duplicates of one another", name)
		}
	}
	if o.NoPosition && o.Payload == nil && o.IDHeaders != nil && len(o.IDHeaders) == 0 {
		return errors.New("hapax: Rules leave no source for an id: set IDHeaders or Payload, or allow the position")
	}
	return nil
}
