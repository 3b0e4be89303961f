// Package identify finds the id and the time of the event in a Kafka record: in headers, in a
// CloudEvents envelope, by a function of the application, or in the record's position and
// timestamp.
//
// All functions are safe for concurrent use and do no I/O, except for what the application's
// function does.
package identify

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// Errors of Rules.Identify. Each is about one record and recurs on every delivery of it, except
// ErrNoTopicID.
var (
	// ErrNoID means that the record has no id and that Rules.NoPosition forbids the use of its
	// position.
	ErrNoID = errors.New("hapax: the record has no event id: have its producer set one of Rules.IDHeaders, or read it from the payload with Rules.Payload")

	// ErrNoTime means that the record has no time: no header, no id that contains one, and no
	// timestamp.
	ErrNoTime = errors.New("hapax: the record has no time: have its producer set one of Rules.TimeHeaders or the record's timestamp")

	// ErrBadPayload means that the payload is not in the expected format: a CloudEvents event in
	// JSON, or the format that Rules.Payload parses.
	ErrBadPayload = errors.New("hapax: no event id can be read from the record's payload")

	// ErrNoTopicID means that the record has no id, so that its position is needed, and that the id
	// of the topic is unknown. Without the topic's id, positions would repeat after a topic is
	// deleted and created again, and its records would be duplicates. Brokers send topic ids since
	// Kafka 3.1. The error does not concern the record, which can be judged once the topic's id is
	// known.
	ErrNoTopicID = errors.New("hapax: the position cannot replace an event id, because the broker does not send the topic's id (Kafka 3.1 does): set Rules.NoPosition or have producers set ids")
)

// An Identity is the id and the time by which the engine judges a record.
type Identity struct {
	ID   []byte // encoded as eventid.go describes; may share memory with the record
	Time time.Time

	IDRule   IDRule
	TimeRule TimeRule
	// ApproximateTime means that the time is the record's timestamp, or the time of an outbox
	// message that carries an event with another id. A producer that sends the event again may give
	// it another time, so the engine must also look at adjacent weeks. It is false for a position,
	// because a position identifies one record with one timestamp.
	ApproximateTime bool
	// BadTimes counts the times that were present and could not be parsed.
	BadTimes int
}

// Restore returns the identity with the given parts, which were stored or put into headers. It
// returns false if no identity can have them. BadTimes is 0.
func Restore(id []byte, at time.Time, idRule IDRule, timeRule TimeRule) (Identity, bool) {
	ok := len(id) > 0 && inYears(at) && idRule >= IDHeader && idRule <= IDPosition && timeRule >= TimePayload && timeRule <= TimeRecord
	return Identity{
		ID: id, Time: at.UTC(), IDRule: idRule, TimeRule: timeRule,
		ApproximateTime: timeRule == TimeRecord && idRule != IDPosition,
	}, ok
}

// A finding is the result of the first rule that found an id.
type finding struct {
	rule   IDRule
	id     []byte
	source []byte // CloudEvents only: the source, a part of the identity

	isMessage bool // the id is that of a message of an outbox

	// The time that came with the id from the payload.
	at   time.Time // from Rules.Payload; zero if there is none
	text []byte    // of a CloudEvents payload, not parsed yet; nil if there is none
}

// Identify returns the identity of the event in r; topicID is the id of r's topic. The errors wrap one of
// the variables above. With ErrNoTime, the rest of the identity is valid.
func (o *Rules) Identify(r *kgo.Record, topicID [16]byte) (Identity, error) {
	var f finding
	if err := o.find(r, &f); err != nil {
		return Identity{}, err
	}
	id := Identity{IDRule: f.rule}
	switch {
	case f.rule != IDPosition:
		id.ID = o.eventID(r.Topic, &f)
	case o.NoPosition:
		return Identity{}, ErrNoID
	case topicID == [16]byte{}:
		return Identity{}, ErrNoTopicID
	default:
		id.ID = PositionID(topicID, r.Partition, r.Offset)
	}
	if !o.date(&id, r, &f) {
		return id, ErrNoTime
	}
	return id, nil
}

func (o *Rules) find(r *kgo.Record, f *finding) error {
	if o.Payload != nil {
		id, at, err := o.payload(r)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBadPayload, err)
		}
		f.at = at
		if len(id) > 0 {
			f.rule, f.id = IDPayload, bytes.Clone(id) // the application may reuse its buffer
			return nil
		}
	}
	at := f.at
	if err := o.findHeader(r, f); err != nil {
		return err
	}
	f.at = at
	if f.rule == 0 {
		f.rule = IDPosition
	}
	return nil
}

// findHeader searches the headers for an id; it leaves f's rule at 0 if there is none.
func (o *Rules) findHeader(r *kgo.Record, f *finding) error {
	names := o.IDHeaders
	if names == nil {
		names = defaultIDHeaders
	}
	for _, name := range names {
		if name == CloudEventsID {
			if err := cloudEvent(r, f); err != nil || f.rule != 0 {
				return err
			}
		} else if id := LastHeader(r.Headers, name); id != nil {
			f.rule, f.id, f.isMessage = IDHeader, id, name == correlation.MessageID
			return nil
		}
	}
	if slices.Contains(names, CloudEventsID) {
		unannounced(r.Value, f)
	}
	return nil
}

// payload calls the application's function. It returns a panic as an error, because otherwise the
// same record would end the process again after each restart.
func (o *Rules) payload(r *kgo.Record) (id []byte, at time.Time, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New(untrusted.Text(fmt.Sprintf("panic in Rules.Payload: %v", v)))
		}
	}()
	if id, at, err = o.Payload(r); err != nil {
		err = untrusted.Take(err)
	}
	return id, at, err
}

// date sets the time of id. It is false if there is none.
func (o *Rules) date(id *Identity, r *kgo.Record, f *finding) bool {
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
	if f.rule != IDPosition {
		if at, rule := timeOfID(f.id); rule != 0 && nearStamp(at, r) {
			id.Time, id.TimeRule = at, rule
			return true
		}
	}
	if r.Attrs.TimestampType() < 0 || r.Timestamp.UnixMilli() < 0 || !inYears(r.Timestamp) {
		return false // -1 is Kafka's value for no timestamp
	}
	id.Time, id.TimeRule, id.ApproximateTime = r.Timestamp.UTC(), TimeRecord, f.rule != IDPosition
	return true
}

func (o *Rules) dateByHeader(id *Identity, r *kgo.Record, f *finding) bool {
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
			text = LastHeader(r.Headers, name)
		}
		if text == nil {
			continue
		}
		if at, ok := parseTime(text); ok {
			id.Time, id.TimeRule = at, rule
			id.ApproximateTime = name == correlation.MessageTime && !f.isMessage && f.rule != IDPosition
			return true
		}
		id.BadTimes++
	}
	return false
}

// LastHeader returns the value of the last header with that name and a value that is not empty, or
// nil. All rules read a repeated header in this way.
func LastHeader(headers []kgo.RecordHeader, name string) []byte {
	for i := len(headers) - 1; i >= 0; i-- {
		if h := &headers[i]; h.Key == name && len(h.Value) > 0 {
			return h.Value
		}
	}
	return nil
}
