package identify

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/correlation"
)

// EnsureID gives a record that is to be produced an id of its own: it appends correlation.Header
// with a new UUIDv7 to the headers, unless the zero Rules find an id there already, such as
// message_id or the id of a CloudEvents event. That id is never overwritten. The producer calls it
// once for each logical send, before the first attempt, and produces the same record, or a copy
// with the same headers, on each retry; calls on a retry change nothing. It changes r.Headers and
// is not safe for concurrent use on one record.
//
// A record that is derived from another one and has its headers would keep the other's id, and be a
// duplicate of it: remove the headers of DefaultIDHeaders from it first.
//
// The UUIDv7 also gives the record the time of the send if it has no time header, the same on all
// attempts.
func EnsureID(r *kgo.Record) {
	var f finding
	if err := (&Rules{}).findHeader(r, &f); err == nil && f.rule != 0 {
		return
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: correlation.Header, Value: []byte(correlation.NewID())})
}
