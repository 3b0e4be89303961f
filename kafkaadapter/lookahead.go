package kafkaadapter

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// lookAhead is the number of records that are identified, and looked up, before the first of them
// is judged.
const lookAhead = 32

// look identifies the records that are judged next, and has the transaction look ahead to them.
// Left out are control records, and those that are done.
func (r *reading) look(tx *engine.Tx, recs []*kgo.Record, next int64) error {
	r.events = r.events[:0]
	fresh := false
	for i, rec := range recs {
		s := &r.ahead[i]
		r.spareRecord(s.Record)
		if *s = (sighting{}); isControl(rec) || rec.Offset < next {
			continue
		}
		if !r.early.take(rec, s) {
			*s = r.sight(rec)
			fresh = true
		}
		if s.isExpected() {
			r.events = append(r.events, s.Event)
		}
	}
	if !fresh || len(r.events) < 2 { // the transaction expects them already
		return nil
	}
	return tx.Prefetch(r.events)
}

// lookEarly identifies and decodes the records of the next batch before its transaction begins, if
// that is likely to wait for its turn in the lane: what is done before the turn delays no other.
func (r *reading) lookEarly(recs []*kgo.Record) {
	r.early.reset(&r.lookout)
	if !r.lane.TakesTurns() || len(recs) == 1 || r.inParts(len(recs)) {
		return
	}
	r.touched += touch(recs)
	began, decodes := time.Now(), r.route.decodes()
	for i, rec := range recs {
		if (i%lookAhead == 0 || decodes) && (r.isEnding() || time.Since(began) > r.c.opt.Batching.BatchTime) {
			return
		}
		if isControl(rec) || rec.Offset < r.next {
			continue
		}
		s := r.sight(rec)
		if decodes && s.err == nil {
			at := time.Now()
			_ = decode(r.partition, s.Record) // it counts when the record is handled
			r.early.handling += time.Since(at)
		}
		r.early.all = append(r.early.all, s)
		if s.isExpected() {
			r.early.events = append(r.early.events, s.Event)
		}
		if isTransient(s.err) { // the batch ends there
			return
		}
	}
}

// earlySightings are records that were identified before the transaction of their batch, in the
// order of offsets.
type earlySightings struct {
	all  []sighting
	next int // those before it were taken

	events   []engine.Event // that they are
	handling time.Duration  // how long the application took to decode them
}

// take moves the sighting of a record to s, if it is the next one.
func (e *earlySightings) take(rec *kgo.Record, s *sighting) bool {
	if e.next == len(e.all) || e.all[e.next].Record.Record != rec {
		return false
	}
	*s, e.all[e.next] = e.all[e.next], sighting{}
	e.next++
	return true
}

// reset gives back what was not taken.
func (e *earlySightings) reset(p *lookout) {
	for i := range e.all[e.next:] {
		p.spareRecord(e.all[e.next+i].Record)
	}
	clear(e.all)
	clear(e.events)
	e.all, e.events, e.next, e.handling = e.all[:0], e.events[:0], 0, 0
}

// A lookout holds the records that are identified ahead of the one that is judged.
type lookout struct {
	early   earlySightings // see lookEarly
	touched byte           // keeps touch from being left out
	ahead   [lookAhead]sighting
	events  []engine.Event // of those ahead
	spare   []*Record      // see newRecord
}

// newRecord returns a record to be judged. They are made a few at a time.
func (p *lookout) newRecord(rec *kgo.Record) *Record {
	if len(p.spare) == 0 {
		made := make([]Record, lookAhead)
		for i := range made {
			p.spare = append(p.spare, &made[i])
		}
	}
	r := p.spare[len(p.spare)-1]
	p.spare = p.spare[:len(p.spare)-1]
	r.Record, r.Attempt = rec, 1
	return r
}

// spareRecord takes back a record that was given to no handler: handlers may keep theirs.
func (p *lookout) spareRecord(r *Record) {
	if r != nil && !r.given {
		*r = Record{}
		p.spare = append(p.spare, r)
	}
}

// sight identifies a record.
func (r *reading) sight(rec *kgo.Record) sighting {
	s := sighting{Record: r.newRecord(rec)}
	s.err = r.identify(&s)
	return s
}

// identify finds the event of a record: for the replay of a dead letter, the one it was; otherwise
// by the chain.
func (r *reading) identify(s *sighting) error {
	rec, route := s.Record, r.route
	rec.Event.Scope, rec.Event.Window = route.Scope, route.Window
	rec.Event.Origin = engine.Origin{Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset}
	id, err := route.Identify.Of(rec.Record, r.topicID)
	if err != nil && !errors.Is(err, identify.ErrNoID) {
		return err
	}
	if rep, ok := r.issuer.Replay(rec.Record, id); ok {
		rec.replay, id, err = rep, rep.Event, nil
		s.generation, s.replayed = rep.Generation, true
	}
	if err != nil {
		return err
	}
	s.badTimes = id.BadTimes
	rec.idRule, rec.timeRule = id.IDRule, id.TimeRule
	rec.Event.ID, rec.Event.Time, rec.Event.ApproximateTime = id.ID, id.Time, id.ApproximateTime
	if s.replayed {
		return deadletter.Incomplete(rec.Record)
	}
	return nil
}

// touch reads a little of all records: of headers, which identify them, and of values, for
// handlers. They were decoded a while ago and are out of the processor's caches by now; read one
// after the other, with nothing between, they are waited for together.
func touch(recs []*kgo.Record) (read byte) {
	for _, r := range recs {
		read += byte(r.Offset)
		if len(r.Value) > 0 {
			read += r.Value[0]
		}
		for i := range r.Headers {
			if h := &r.Headers[i]; len(h.Key) > 0 && len(h.Value) > 0 {
				read += h.Key[0] + h.Value[0]
			}
		}
	}
	return read
}
