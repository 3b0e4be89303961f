package deadletter

import (
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// HeaderPrefix begins the names of the adapter's own headers of a dead letter; it is reserved for
// them. The values are one line of text, so that they survive tools that keep headers as text:
// numbers in decimal digits, and group, scope and event id percent-encoded as a segment of a URL's
// path (RFC 3986, url.PathEscape), which changes no letter, digit, hyphen, dot or underscore. A header
// with an empty value is left out. If the record has no usable identity, all headers of the event and
// the seal are left out; the generation is also left out if the event was never claimed.
const HeaderPrefix = "hapax_dlt_"

// The adapter's own headers.
const (
	dltVersion       = HeaderPrefix + "version"                 // 1
	dltTopic         = HeaderPrefix + "original_topic"          //
	dltPartition     = HeaderPrefix + "original_partition"      //
	dltOffset        = HeaderPrefix + "original_offset"         //
	dltTimestamp     = HeaderPrefix + "original_timestamp"      // Unix milliseconds
	dltTimestampType = HeaderPrefix + "original_timestamp_type" // CreateTime, LogAppendTime, NoTimestampType
	dltGroup         = HeaderPrefix + "group"                   // of the consumer, percent-encoded
	dltScope         = HeaderPrefix + "scope"                   // of the claim, percent-encoded
	dltReason        = HeaderPrefix + "reason"                  // snake case, as in metrics
	dltErrorType     = HeaderPrefix + "error_type"              // the Go type of the innermost error
	dltError         = HeaderPrefix + "error"                   // at most MaxText bytes
	dltAttempts      = HeaderPrefix + "attempts"                //
	dltEventID       = HeaderPrefix + "event_id"                // percent-encoded
	dltEventTime     = HeaderPrefix + "event_time"              // RFC 3339, UTC
	dltIDRule        = HeaderPrefix + "id_rule"                 // IDRule.String
	dltTimeRule      = HeaderPrefix + "time_rule"               // TimeRule.String
	dltGeneration    = HeaderPrefix + "generation"              // of the claim; only if there is one
	dltSeal          = HeaderPrefix + "seal"                    // hexadecimal digits
	dltStore         = HeaderPrefix + "store"                   // UUID
	dltIncarnation   = HeaderPrefix + "incarnation"             //
	dltOmitted       = HeaderPrefix + "omitted"                 // value or record; only if that was left out
	dltOmittedBytes  = HeaderPrefix + "omitted_bytes"           // bytes
	dltOmittedFrom   = HeaderPrefix + "omitted_from"            // where the whole record is: topic/partition/offset

	dltVersion1 = "1"
)

// withoutOurs returns the headers without those that begin with the adapter's prefix. It returns
// the same slice if there are none.
func withoutOurs(headers []kgo.RecordHeader) []kgo.RecordHeader {
	ours := func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, HeaderPrefix) }
	if !slices.ContainsFunc(headers, ours) {
		return headers
	}
	return slices.DeleteFunc(slices.Clone(headers), ours)
}

// A headerList collects headers. A header with an empty value is left out.
type headerList []kgo.RecordHeader

func (h *headerList) bytes(key string, value []byte) {
	if len(value) > 0 {
		*h = append(*h, kgo.RecordHeader{Key: key, Value: value})
	}
}

func (h *headerList) text(key, value string)         { h.bytes(key, []byte(value)) }
func (h *headerList) number(key string, value int64) { h.text(key, strconv.FormatInt(value, 10)) }
