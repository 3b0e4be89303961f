package kafkaadapter

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Record is a Kafka record with its event and verdict, as handlers get it.
type Record struct {
	*kgo.Record
	// Event is the claimed event.
	Event engine.Event
	// Verdict is Claimed, or TooOld, TooNew, Mismatch or Failed if the route's policy handles such
	// records without a claim.
	Verdict engine.Verdict
	// Attempt is the number of this attempt, from 1, counted across restarts.
	Attempt int
	// Reopened is set for the replay of a dead letter.
	Reopened bool

	idRule   identify.IDRule // zero if the record has no usable event
	timeRule identify.TimeRule
	unjudged error              // why the verdict is Failed
	given    bool               // to a handler
	slot     int                // of its handler, among those that run in parallel
	replay   *deadletter.Replay // it is one, whose event this is
	decoded  decoded            // see Transactional.Decode
}

// identity is the identity by which the record is judged, without BadTimes; zero if the record has
// no usable one.
func (r *Record) identity() identify.Identity {
	return identify.Identity{ID: r.Event.ID, Time: r.Event.Time, ApproximateTime: r.Event.ApproximateTime, IDRule: r.idRule, TimeRule: r.timeRule}
}

// A decoded is the result of Transactional.Decode for a record.
type decoded struct {
	value any
	err   error
	done  bool // Decode was called
}

// Decoded returns the result of Transactional.Decode for the record, nil if Decode is not set.
func (r *Record) Decoded() any { return r.decoded.value }

// A sighting is an identified record that is not judged yet.
type sighting struct {
	*Record    // nil for the records that look omits
	generation uint64
	replayed   bool
	badTimes   int
	refused    deadletter.Refusal // why the headers of a dead letter do not count
	err        error
}

// isExpected reports whether the transaction prefetches the event, which it will then be asked to
// claim.
func (s *sighting) isExpected() bool { return s.err == nil && !s.replayed }

func isControl(rec *kgo.Record) bool { return rec.Attrs.IsControl() }
