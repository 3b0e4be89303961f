package identify

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

// Names of headers that stand for more than their own value.
const (
	// CloudEventsID in Rules.IDHeaders stands for the identity of a CloudEvents event, its source
	// together with its id: the headers ce_source and ce_id, or the payload in structured mode.
	CloudEventsID = "ce_id"
	// CloudEventsTime in Rules.TimeHeaders stands for the time of a CloudEvents event, in a header
	// or in the payload.
	CloudEventsTime = "ce_time"
)

// DebeziumID is the header in which Debezium's outbox event router puts the id of an event. It is
// not among the default headers, because other producers use the name for ids that many events
// share: add it to Rules.IDHeaders for topics that the router writes.
const DebeziumID = "id"

// The default headers. Each names one event. Those of this module come first.
var (
	defaultIDHeaders   = []string{correlation.Header, CloudEventsID, "idempotency-key", "message_id", "_watermill_message_uuid"}
	defaultTimeHeaders = []string{CloudEventsTime, "event_time", "timestamp"}
)

// Rules say how the id and the time of the event in a record are found. The zero value asks, in
// this order,
//
//   - for the id: the header correlation.Header, which EnsureID sets; ce_id together with ce_source
//     (or a CloudEvents payload); idempotency-key, message_id, _watermill_message_uuid; then the
//     record's position.
//   - for the time: the headers ce_time (or the time of a CloudEvents payload), event_time,
//     timestamp; then an id that is a UUIDv7 or a ULID; then the record's timestamp.
//
// Payload, if it is set, goes before all of them. The first rule that finds something is taken. The
// names of headers are compared byte by byte, as Kafka has them: Message_ID is not message_id. If a
// header is there more than once, the last one counts. A header with an empty value counts as
// absent.
//
// An id from a header or from Payload is taken as it is, byte for byte, and all of these are one
// space of ids: message_id "7" and idempotency-key "7" are the same event, on every topic that is
// consumed under one scope, unless PerTopic is set. Ids of CloudEvents and positions are kept apart
// from them and from each other. A header that many events share is no id: all but the first of
// those events would be duplicates. So correlation_id, which names a conversation in many systems,
// and the bare name id are not among the defaults.
//
// # Times
//
// A time in a header is RFC 3339, or a count since 1970 in decimal digits: milliseconds, or seconds
// if it is below 10^11 (which would be March 1973 in milliseconds, and is the year 5138 in
// seconds), or such a count in 8 bytes, big endian, as Java serializes a long. Finer counts are not
// read.
//
// A time that cannot be read, or lies outside the years 1 to 9999, is passed over for the next
// rule, and that is counted. Refusing the record would keep an event from its handler for a flaw
// that does it no harm. A wrong time never makes an event a duplicate: ids decide that. It can only
// place the event in another week than a later, corrected delivery of it, which is then handled
// again.
//
// A ULID is 26 characters, not all of them digits; a UUIDv7 is the form with hyphens. Their times
// count from the year 2000 to 2099, and not if they are more than two days after the record's
// timestamp or more than 366 days before it, so that few ids of other kinds are taken for one;
// NoIDTime leaves them out.
type Rules struct {
	// IDHeaders are asked in this order. nil = those above; an empty list asks none.
	IDHeaders []string

	// Payload reads the id, and the event's time if it can; it is asked before the headers. No id
	// and no error leaves the id to the headers and the position. A zero time leaves the time to
	// the other rules. An error or a panic is ErrBadPayload, and the record is undecodable, unless
	// the error is marked by kafkaadapter.Transient: then the record is identified again after a
	// backoff. Payload must return the same for the same record, must not change the record, and
	// may be called from several goroutines, and for some records ahead of the one that is handled.
	// The id is copied. nil = headers and position only.
	Payload func(r *kgo.Record) (id []byte, at time.Time, err error)

	// NoPosition makes a record that has no id ErrNoID. Otherwise its position (topic id,
	// partition, offset) stands in for one: that recognises the record when it is delivered again,
	// and not the copy that a producer sends again.
	NoPosition bool

	// PerTopic adds the topic's name to ids, for ids that are unique only within their topic.
	PerTopic bool

	// TimeHeaders are asked in this order. nil = those above; an empty list asks none.
	TimeHeaders []string

	// NoIDTime takes no time from ids that look like a UUIDv7 or a ULID and are none.
	NoIDTime bool
}

// shared are headers that events have in common: as an id, each would make nearly every event a
// duplicate.
var shared = []string{
	"ce_source", "ce_type", "ce_specversion", "ce_subject", "ce_time", "ce_datacontenttype", "ce_dataschema",
	contentType, "traceparent", "tracestate", "baggage",
}

// Validate refuses rules that cannot work or would lose events.
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
