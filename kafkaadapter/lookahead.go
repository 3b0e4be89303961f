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

// A sighting is a record that was identified and is still to be judged.
type sighting struct {
	*Record    // nil for what look leaves out
	generation uint64
	replayed   bool
	badTimes   int
	err        error
}

// look identifies the records that are judged next, and has the transaction look ahead to them.
// Left out are control records, and those that are done.
func (b *batch) look(recs []*kgo.Record) error {
	p := b.p
	p.events = p.events[:0]
	for i, rec := range recs {
		s := &p.ahead[i]
		p.spareRecord(s.Record)
		if *s = (sighting{}); isControl(rec) || rec.Offset < b.next {
			continue
		}
		if !p.early.take(rec, s) {
			*s = p.sight(rec)
		}
		if s.err == nil && !s.replayed {
			p.events = append(p.events, s.Event)
		}
	}
	if len(p.events) < 2 {
		return nil
	}
	return b.tx.Prefetch(p.events)
}

// lookEarly identifies the records of the next batch before its transaction begins, if that is
// likely to wait for its turn in the lane: what is done before the turn delays no other.
func (p *partition) lookEarly(recs []*kgo.Record) {
	p.early.reset(&p.lookout)
	if !p.lane.TakesTurns() || len(recs) == 1 || p.inParts(len(recs)) {
		return
	}
	p.touched += touch(recs)
	began := time.Now()
	for i, rec := range recs {
		if i%lookAhead == 0 && (p.isEnding() || time.Since(began) > p.c.opt.Batching.BatchTime) {
			return
		}
		if isControl(rec) || rec.Offset < p.next {
			continue
		}
		s := p.sight(rec)
		p.early.all = append(p.early.all, s)
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
	e.all, e.next = e.all[:0], 0
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
func (p *partition) sight(rec *kgo.Record) sighting {
	s := sighting{Record: p.newRecord(rec)}
	s.err = p.identify(&s)
	return s
}

// identify finds the event of a record: for the replay of a dead letter, the one it was; otherwise
// by the chain.
func (p *partition) identify(s *sighting) error {
	r, route := s.Record, p.route
	r.Event.Scope, r.Event.Window = route.Scope, route.Window
	r.Event.Origin = engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
	id, err := route.Identify.Of(r.Record, p.topicID)
	if err != nil && !errors.Is(err, identify.ErrNoID) {
		return err
	}
	if rep, ok := p.issuer.Replay(r.Record, id); ok {
		r.replay, id, err = rep, rep.Event, nil
		s.generation, s.replayed = rep.Generation, true
	}
	if err != nil {
		return err
	}
	s.badTimes = id.BadTimes
	r.idRule, r.timeRule = id.IDRule, id.TimeRule
	r.Event.ID, r.Event.Time, r.Event.ApproximateTime = id.ID, id.Time, id.ApproximateTime
	if s.replayed {
		return deadletter.Incomplete(r.Record)
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
