package identify

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

// EnsureID makes sure that a record has an id before it is produced. It appends correlation.Header
// with a new UUIDv7 to the headers, unless the zero Rules already find an id there, such as
// message_id or the id of a CloudEvents event. An existing id is never overwritten. The producer
// calls it once for each logical send, before the first attempt, and produces the same record, or a
// copy with the same headers, on each retry; calls on a retry change nothing. It changes r.Headers
// and is not safe for concurrent use on one record.
//
// A record that is derived from another one and has its headers would keep the id of the other, and
// be a duplicate of it. Remove the headers of DefaultIDHeaders from it first.
//
// If the record has no time header, the UUIDv7 also gives it the time of the send, the same on all
// attempts.
func EnsureID(r *kgo.Record) {
	var f finding
	if err := (&Rules{}).findHeader(r, &f); err == nil && f.rule != 0 {
		return
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: correlation.Header, Value: []byte(correlation.NewID())})
}
