package deadletter

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// MaxText is the maximum number of bytes of an error's text in a dead letter. A longer text is cut
// between two characters and ends in an ellipsis. Characters that are not printable are escaped as in
// a Go string.
const MaxText = untrusted.MaxText

const maxErrorType = 256

// A Reason says why a record is a dead letter, in snake case as in headers and metrics.
type Reason string

// The reasons.
const (
	Undecodable Reason = "undecodable" // the record has no usable id or time
	TooOld      Reason = "too_old"     // by policy
	TooNew      Reason = "too_new"     // by policy
	Mismatch    Reason = "mismatch"    // by policy: its id was claimed with another payload
	Permanent   Reason = "permanent"   // the handler has failed with an error marked by kafkaadapter.Permanent
	Attempts    Reason = "attempts"    // the handler has failed for the last time
)

// Reasons lists all reasons, for labels and counters.
var Reasons = [...]Reason{Undecodable, TooOld, TooNew, Mismatch, Permanent, Attempts}

// A letter contains the data of a dead letter before it is encoded as a record.
type letter struct {
	Stamp stamp // the record's timestamp

	Key, Value []byte // nil and empty differ, as they do in Kafka
	Headers    []kgo.RecordHeader

	Reason    Reason
	ErrorType string // the Go type of the innermost error
	Error     string // one line of valid UTF-8, at most MaxText bytes
	Attempts  uint32

	Omitted []kgo.RecordHeader // what was left out of a replay, and is missing in this letter too

	Sealed Sealed
	Seal   []byte // nil or sealLen bytes, see Sealed.seal
}

// usable returns the identity, or false if the engine rejects its id.
func usable(event identify.Identity, ok bool) (identify.Identity, bool) {
	return event, ok && len(event.ID) <= limits.IDBytes
}

// A stamp is a record's timestamp in Kafka's form.
type stamp struct {
	Millis int64
	Type   stampType
}

// A stampType says who set a timestamp. Its values are Kafka's.
type stampType int8

const (
	noTimestamp   stampType = -1
	createTime    stampType = 0 // the producer's client
	logAppendTime stampType = 1 // the broker
)

var stampTypes = [...]stampType{noTimestamp, createTime, logAppendTime}

// String returns the type's name as Kafka's own tools print it.
func (t stampType) String() string {
	switch t {
	case createTime:
		return "CreateTime"
	case logAppendTime:
		return "LogAppendTime"
	}
	return "NoTimestampType"
}

func stampOf(r *kgo.Record) stamp {
	return stamp{r.Timestamp.UnixMilli(), stampType(r.Attrs.TimestampType())}
}
