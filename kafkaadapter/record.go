package kafkaadapter

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A Record is a Kafka record with its event and verdict, as handlers get it. It is the handler's
// own: the handler may keep it, change it and its bytes, and forward it with the client's Produce.
// The next attempt, a dead letter, the claim and the offset are those of the record that was
// fetched. Concurrency.Key, Decode and the handler get the same Record in one attempt.
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

	decoded any
}

// Decoded returns the result of Transactional.Decode for the record, nil if Decode is not set.
func (r *Record) Decoded() any { return r.decoded }

// A delivery is a record with its event and verdict, as the adapter sees it. The application
// reaches none of its memory: see hands.
type delivery struct {
	Record   *kgo.Record
	Event    engine.Event
	Verdict  engine.Verdict
	Attempt  int
	Reopened bool

	idRule   identify.IDRule // zero if the record has no usable event
	timeRule identify.TimeRule
	unjudged error              // why the verdict is Failed
	waits    bool               // for its handler, longer than for those ahead of it
	slot     int                // of its handler, among those that run in parallel
	replay   *deadletter.Replay // it is one, whose event this is
	decoded  decoded            // see Transactional.Decode
	given    *given             // to the application in this attempt, nil if nothing was
}

// A given is what the application gets of a delivery in one attempt.
type given struct {
	Record Record
	raw    kgo.Record
}

// identity is the identity by which the record is judged, without BadTimes; zero if the record has
// no usable one.
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
	refused    deadletter.Refusal // why the headers of a dead letter do not count
	err        error
}

// isExpected reports whether the transaction prefetches the event, which it will then be asked to
// claim.
func (s *sighting) isExpected() bool { return s.err == nil && !s.replayed }

func isControl(rec *kgo.Record) bool { return rec.Attrs.IsControl() }
