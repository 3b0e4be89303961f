package identify

import "strconv"

// An IDRule says where an event's id was found. The zero value means none.
type IDRule uint8

// The rules, in the order of Rules. Their values are stored in dead letters forever.
const (
	_                       IDRule = iota
	IDHeader                       // the value of a header
	IDCloudEvents                  // CloudEvents, binary mode: ce_source and ce_id
	IDCloudEventsStructured        // CloudEvents, structured mode: source and id of the payload
	IDPayload                      // Rules.Payload
	IDPosition                     // the record's position: topic id, partition, offset
)

// IDRules lists all rules in the order of their values, for labels and counters.
var IDRules = [...]IDRule{IDHeader, IDCloudEvents, IDCloudEventsStructured, IDPayload, IDPosition}

const idRuleCount = len(IDRules) + 1 // for tables that are indexed by a rule or by 0

// String returns the rule's name in snake case, as it is used in metrics and dead letters.
func (r IDRule) String() string {
	switch r {
	case IDHeader:
		return "header"
	case IDCloudEvents:
		return "cloudevents"
	case IDCloudEventsStructured:
		return "cloudevents_structured"
	case IDPayload:
		return "payload"
	case IDPosition:
		return "position"
	}
	return "id_rule(" + strconv.Itoa(int(r)) + ")"
}

// A TimeRule says where an event's time was found. The zero value means none.
type TimeRule uint8

// The rules, in the order of Rules. Their values are stored in dead letters forever.
const (
	_               TimeRule = iota
	TimePayload              // Rules.Payload
	TimeCloudEvents          // ce_time, or the time of a CloudEvents payload
	TimeHeader               // another header
	TimeUUIDv7               // the id, a UUIDv7
	TimeULID                 // the id, a ULID
	TimeRecord               // the record's timestamp, set by the producer's client or by the broker
)

// TimeRules lists all rules in the order of their values, for labels and counters.
var TimeRules = [...]TimeRule{TimePayload, TimeCloudEvents, TimeHeader, TimeUUIDv7, TimeULID, TimeRecord}

const timeRuleCount = len(TimeRules) + 1

// String returns the rule's name in snake case, as it is used in metrics and dead letters.
func (r TimeRule) String() string {
	switch r {
	case TimePayload:
		return "payload"
	case TimeCloudEvents:
		return "cloudevents"
	case TimeHeader:
		return "header"
	case TimeUUIDv7:
		return "uuidv7"
	case TimeULID:
		return "ulid"
	case TimeRecord:
		return "record"
	}
	return "time_rule(" + strconv.Itoa(int(r)) + ")"
}
