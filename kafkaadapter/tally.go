package kafkaadapter

import (
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A tally counts the outcome of the records of a batch. The metrics add it when it is final: with
// the batch, or with AtMostOnce when it is known which of its records stay in the batch.
type tally struct {
	verdicts    [len(engine.Verdicts) + 1]uint32
	idRules     [len(identify.IDRules) + 1]uint32
	timeRules   [len(identify.TimeRules) + 1]uint32
	badTimes    uint32                     // times that could not be read
	reopened    uint32                     // replays of dead letters that are handled
	unclaimed   uint32                     // handled without a claim
	unprotected uint32                     // of those, because the store was unavailable
	rejected    [len(rejectReasons)]uint32 // acknowledged unhandled, by policy
	refused     [len(deadletter.Refusals)]uint32
}

// rejectReasons are the reasons for which a policy may reject a record.
var rejectReasons = [...]deadletter.Reason{deadletter.Undecodable, deadletter.TooOld, deadletter.TooNew, deadletter.Mismatch}

// identified counts by which rules a completed record was identified.
func (t *tally) identified(s *sighting) {
	if s.delivery != nil && s.err == nil {
		t.idRules[s.delivery.idRule]++
		t.timeRules[s.delivery.timeRule]++
		t.badTimes += uint32(s.badTimes)
	}
	for i, reason := range deadletter.Refusals {
		if s.delivery != nil && reason == s.refused {
			t.refused[i]++
		}
	}
}

// handled counts a record whose handling is part of the batch.
func (t *tally) handled(r *delivery) {
	t.verdicts[r.Verdict]++
	if r.Verdict != engine.Claimed {
		t.unclaimed++
	}
	if r.Reopened {
		t.reopened++
	}
}

// reject counts a record that is acknowledged unhandled.
func (t *tally) reject(why deadletter.Reason) {
	for i, reason := range rejectReasons {
		if reason == why {
			t.rejected[i]++
		}
	}
}

// add adds another tally.
func (t *tally) add(more *tally) {
	addEach(t.verdicts[:], more.verdicts[:])
	addEach(t.idRules[:], more.idRules[:])
	addEach(t.timeRules[:], more.timeRules[:])
	addEach(t.rejected[:], more.rejected[:])
	addEach(t.refused[:], more.refused[:])
	t.badTimes += more.badTimes
	t.reopened += more.reopened
	t.unclaimed += more.unclaimed
	t.unprotected += more.unprotected
}

func addEach(sums, more []uint32) {
	for i, n := range more {
		sums[i] += n
	}
}

// tally counts the outcome of records of a topic.
func (m *metrics) tally(topic string, t *tally) {
	for v, n := range t.verdicts {
		if n > 0 {
			m.records.WithLabelValues(topic, engine.Verdict(v).String()).Add(float64(n))
		}
	}
	for rule, n := range t.idRules {
		if n > 0 {
			m.ids.WithLabelValues(topic, identify.IDRule(rule).String()).Add(float64(n))
		}
	}
	for rule, n := range t.timeRules {
		if n > 0 && rule > 0 { // 0: none, which a window does not need
			m.times.WithLabelValues(topic, identify.TimeRule(rule).String()).Add(float64(n))
		}
	}
	for i, n := range t.rejected {
		if n > 0 {
			m.skipped.WithLabelValues(topic, string(rejectReasons[i])).Add(float64(n))
		}
	}
	for i, n := range t.refused {
		if n > 0 {
			m.refused.WithLabelValues(topic, string(deadletter.Refusals[i])).Add(float64(n))
		}
	}
	if t.badTimes > 0 {
		m.badTimes.WithLabelValues(topic).Add(float64(t.badTimes))
	}
	if t.unclaimed > 0 {
		m.unclaimed.WithLabelValues(topic).Add(float64(t.unclaimed))
	}
	if t.unprotected > 0 {
		m.unprotected.WithLabelValues(topic).Add(float64(t.unprotected))
	}
	if t.reopened > 0 {
		m.reopened.WithLabelValues(topic).Add(float64(t.reopened))
	}
}
