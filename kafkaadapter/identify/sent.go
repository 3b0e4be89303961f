package identify

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Sent returns when a record was sent: the timestamp that its producer or the broker gave it. It is
// zero if the record has none. See engine.Event.Sent.
func Sent(r *kgo.Record) time.Time {
	if r.Attrs.TimestampType() < 0 || r.Timestamp.UnixMilli() <= 0 || !inYears(r.Timestamp) {
		return time.Time{}
	}
	return r.Timestamp
}
