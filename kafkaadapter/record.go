package kafkaadapter

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Record is a Kafka record with its event and verdict, for a handler. The handler owns it: it may
// keep the Record, change it and its bytes, and forward it with the client's Produce. The next
// attempt, a dead letter, the claim and the offset use the fetched record. Concurrency.key, Decode
// and the handler get the same Record in one attempt.
type Record struct {
	*kgo.Record
	// Event is the claimed event.
	Event engine.Event
	// Verdict is Claimed; or TooOld, TooNew, Mismatch or Failed if the route's policy handles such
	// records without a claim.
	Verdict engine.Verdict
	// Attempt is the number of this attempt, starting with 1 and counted across restarts.
	Attempt int
	// Reopened is set for the replay of a dead letter.
	Reopened bool
	// Decoded is the result of Transactional.Decode for the record, nil if Decode is not set.
	Decoded any
}

// A delivery is a record with its event and verdict, for the adapter. The application cannot change
// its memory: see hands.
type delivery struct {
	Record   *kgo.Record
	Event    engine.Event
	Verdict  engine.Verdict
	Attempt  int
	Reopened bool

	idRule   identify.IDRule // zero if the record has no usable event
	timeRule identify.TimeRule
	unjudged error              // why the verdict is Failed
	waits    bool               // waits for its handler after the following records are taken
	slot     int                // slot of its handler among those that run in parallel
	replay   *deadletter.Replay // set if the record is a replay
	decoded  decoded            // see Transactional.Decode
	given    *given             // given to the application in this attempt, or nil
}

// A given is what the application gets for a delivery in one attempt.
type given struct {
	Record Record
	raw    kgo.Record
}

// identity returns the identity by which the record is judged, without BadTimes; zero if the record
// has no usable one.
func (d *delivery) identity() identify.Identity {
	return identify.Identity{ID: d.Event.ID, Time: d.Event.Time, ApproximateTime: d.Event.ApproximateTime, IDRule: d.idRule, TimeRule: d.timeRule}
}

// A decoded is the result of Transactional.Decode for a record.
type decoded struct {
	value any
	err   error
	done  bool // Decode was called
}

// A sighting is an identified record that is not judged yet.
type sighting struct {
	delivery   *delivery // nil for the records that look omits
	generation uint64
	replayed   bool
	badTimes   int
	refused    deadletter.Refusal // why the headers of a dead letter are not accepted
	err        error
}

// isExpected reports whether the transaction prefetches the event, which is claimed later.
func (s *sighting) isExpected() bool { return s.err == nil && !s.replayed }

func isControl(rec *kgo.Record) bool { return rec.Attrs.IsControl() }

// ErrLargeBatch means that a batch of records in the log decompresses to more than
// MaxBufferedBytes, with the memory of its records. It is not decompressed. The partition
// stops before it (reason large_batch), or the policy for LargeBatch rejects it.
var ErrLargeBatch = errors.New("hapax: a batch of records decompresses to more than MaxBufferedBytes: raise it, or set Route.Policies[LargeBatch] to Reject")

// A largeBatch stands for the records of a batch that is not decompressed.
type largeBatch struct {
	first, last *kgo.Record // without contents
	err         error
}

func newLargeBatch(e *kgo.ErrDecompressTooLarge, most int64) *largeBatch {
	empty := kgo.Record{Topic: e.Topic, Partition: e.Partition, LeaderEpoch: e.Epoch, Timestamp: time.UnixMilli(-1)}
	first, last := empty, empty
	first.Offset, last.Offset = e.Offset, e.NextOffset-1
	return &largeBatch{&first, &last, fmt.Errorf("%w: offsets %d to %d, more than %d bytes", ErrLargeBatch, first.Offset, last.Offset, most)}
}

// is reports whether rec stands for the batch.
func (l *largeBatch) is(rec *kgo.Record) bool { return l != nil && l.last == rec }
