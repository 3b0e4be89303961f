package deadletter

import (
	"encoding/binary"
	"encoding/hex"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Headers selects headers that a dead letter gets in addition to the adapter's own, for other
// tools. They repeat the same facts. Only the adapter's own headers identify a replay.
type Headers uint8

// The headers of other tools.
const (
	Neutral Headers = iota // the adapter's own only
	Spring                 // and kafka_dlt-*, which Spring for Apache Kafka writes and reads
	Connect                // and __connect.errors.*, which Kafka Connect writes
)

// record returns the letter as a record. It replaces the headers of an earlier dead letter of the
// same record: all that begin with HeaderPrefix, and those of Spring or Connect that are written
// again. Headers of Spring or Connect that another program wrote are also replaced, if the letter
// has headers with the same names.
func (l *letter) record(more Headers) *kgo.Record {
	own := l.ownHeaders()
	switch more {
	case Spring:
		own = append(own, l.springHeaders()...)
	case Connect:
		own = append(own, l.connectHeaders()...)
	}
	headers := make([]kgo.RecordHeader, 0, len(l.Headers)+len(own))
	for _, h := range l.Headers {
		if !slices.ContainsFunc(own, func(o kgo.RecordHeader) bool { return o.Key == h.Key }) {
			headers = append(headers, h)
		}
	}
	return &kgo.Record{Key: l.Key, Value: l.Value, Headers: append(headers, own...)}
}

func (l *letter) ownHeaders() []kgo.RecordHeader {
	h := make(headerList, 0, 20)
	h.text(dltVersion, dltVersion1)
	h.text(dltTopic, l.Sealed.Origin.Topic)
	h.number(dltPartition, int64(l.Sealed.Origin.Partition))
	h.number(dltOffset, l.Sealed.Origin.Offset)
	h.number(dltTimestamp, l.Stamp.Millis)
	h.text(dltTimestampType, l.Stamp.Type.String())
	h.text(dltGroup, url.PathEscape(l.Sealed.Group))
	h.text(dltScope, url.PathEscape(l.Sealed.Scope))
	h.text(dltReason, string(l.Reason))
	h.text(dltErrorType, l.ErrorType)
	h.text(dltError, l.Error)
	h.number(dltAttempts, int64(l.Attempts))
	if len(l.Sealed.Event.ID) > 0 {
		h.text(dltEventID, url.PathEscape(string(l.Sealed.Event.ID)))
		h.text(dltEventTime, l.Sealed.Event.Time.UTC().Format(time.RFC3339Nano))
		h.text(dltIDRule, l.Sealed.Event.IDRule.String())
		h.text(dltTimeRule, l.Sealed.Event.TimeRule.String())
		if l.Sealed.Claimed {
			h.text(dltGeneration, strconv.FormatUint(l.Sealed.Generation, 10))
		}
		h.text(dltSeal, hex.EncodeToString(l.Seal))
	}
	h.text(dltStore, uuid.UUID(l.Sealed.Store).String())
	h.text(dltIncarnation, strconv.FormatUint(l.Sealed.Incarnation, 10))
	return append(h, l.Omitted...)
}

// springHeaders returns headers with the names and encodings of DeadLetterPublishingRecoverer:
// numbers are big endian, an int or a long.
func (l *letter) springHeaders() []kgo.RecordHeader {
	var h headerList
	h.text("kafka_dlt-original-topic", l.Sealed.Origin.Topic)
	h.bytes("kafka_dlt-original-partition", binary.BigEndian.AppendUint32(nil, uint32(l.Sealed.Origin.Partition)))
	h.bytes("kafka_dlt-original-offset", binary.BigEndian.AppendUint64(nil, uint64(l.Sealed.Origin.Offset)))
	h.bytes("kafka_dlt-original-timestamp", binary.BigEndian.AppendUint64(nil, uint64(l.Stamp.Millis)))
	h.text("kafka_dlt-original-timestamp-type", l.Stamp.Type.String())
	h.text("kafka_dlt-original-consumer-group", l.Sealed.Group)
	h.text("kafka_dlt-exception-fqcn", l.exceptionType())
	h.text("kafka_dlt-exception-message", l.exceptionText())
	h.text("kafka_dlt-exception-stacktrace", l.stacktrace())
	return h
}

// connectHeaders returns headers with the names of Connect's DeadLetterQueueReporter; all values
// are text. A consumer has no connector and no task: the group and the partition are used instead.
func (l *letter) connectHeaders() []kgo.RecordHeader {
	const prefix = "__connect.errors."
	var h headerList
	h.text(prefix+"topic", l.Sealed.Origin.Topic)
	h.number(prefix+"partition", int64(l.Sealed.Origin.Partition))
	h.number(prefix+"offset", l.Sealed.Origin.Offset)
	h.text(prefix+"connector.name", l.Sealed.Group)
	h.number(prefix+"task.id", int64(l.Sealed.Origin.Partition))
	h.text(prefix+"stage", "TASK_PUT")
	h.text(prefix+"class.name", "github.com/hapax-dev/hapax/kafkaadapter.Consumer")
	h.text(prefix+"exception.class.name", l.exceptionType())
	h.text(prefix+"exception.message", l.exceptionText())
	h.text(prefix+"exception.stacktrace", l.stacktrace())
	return h
}

// The exception's type and text are set even if there was no error, because tools expect them.
func (l *letter) exceptionType() string {
	if l.ErrorType == "" {
		return string(l.Reason)
	}
	return l.ErrorType
}

func (l *letter) exceptionText() string {
	if l.Error == "" {
		return string(l.Reason)
	}
	return l.Error
}

// The stack trace is the line with which Java begins one, because Go records no stack with an
// error.
func (l *letter) stacktrace() string { return l.exceptionType() + ": " + l.exceptionText() }
