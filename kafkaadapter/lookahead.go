package kafkaadapter

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// lookAhead is the number of records that are identified and looked up before the first of them is
// claimed.
const lookAhead = 32

// look identifies the next records, lets the transaction prefetch their events, and decodes the
// records. It omits control records and records that are already done. handling is the time spent in
// Decode.
func (r *partitionState) look(tx *engine.Tx, recs []*kgo.Record, next int64) (handling time.Duration, err error) {
	r.lookout.events = r.lookout.events[:0]
	fresh := false
	for i, rec := range recs {
		s := &r.lookout.ahead[i]
		r.lookout.recycle(s.delivery)
		if *s = (sighting{}); isControl(rec) || rec.Offset < next {
			continue
		}
		if !r.lookout.early.take(rec, s) {
			*s = r.sight(rec)
			fresh = true
		}
		if s.isExpected() {
			r.lookout.events = append(r.lookout.events, judged(s.delivery.Event, false))
		}
	}
	if !fresh || len(r.lookout.events) < 2 { // the transaction already expects them
		return 0, nil
	}
	if err := driver.Prefetch(tx, r.lookout.events); err != nil || !r.partition.route.decodes() {
		return 0, err
	}
	claimed, err := driver.ProbablyClaimed(tx)
	if err != nil {
		return 0, err
	}
	return decodeNew(r.partition, r.lookout.ahead[:len(recs)], claimed, r.partition.c.opt.batchTime/8), nil
}

// lookEarly identifies the records of the next batch before its transaction begins, if the
// transaction will probably wait for its turn in the lane. Work done before the turn does not delay
// other partitions.
func (r *partitionState) lookEarly(recs []*kgo.Record) {
	r.lookout.early.reset(&r.lookout)
	if !r.lane.Serialized() || len(recs) == 1 || r.inParts(len(recs)) {
		return
	}
	r.lookout.touched += touch(recs)
	r.lookout.early.began = time.Now()
	for i, rec := range recs {
		if i%lookAhead == 0 && (r.partition.isEnding() || time.Since(r.lookout.early.began) > r.partition.c.opt.batchTime) {
			return
		}
		if isControl(rec) || rec.Offset < r.next {
			continue
		}
		s := r.sight(rec)
		r.lookout.early.all = append(r.lookout.early.all, s)
		if s.isExpected() {
			r.lookout.early.events = append(r.lookout.early.events, judged(s.delivery.Event, false))
		}
		if IsTransient(s.err) { // the batch ends there
			return
		}
	}
}

// earlySightings are records that were identified before the transaction of their batch, in the
// order of offsets.
type earlySightings struct {
	all  []sighting
	next int // the index of the first that was not taken

	began    time.Time
	events   []engine.Event // of the records
	handling time.Duration  // time spent in Decode
}

// take moves the sighting of a record to s, if it is the next one.
func (e *earlySightings) take(rec *kgo.Record, s *sighting) bool {
	if e.next == len(e.all) || e.all[e.next].delivery.Record != rec {
		return false
	}
	*s, e.all[e.next] = e.all[e.next], sighting{}
	e.next++
	return true
}

// reset recycles the records that were not taken.
func (e *earlySightings) reset(p *lookout) {
	for i := range e.all[e.next:] {
		p.recycle(e.all[e.next+i].delivery)
	}
	clear(e.all)
	clear(e.events)
	e.all, e.events, e.next, e.handling = e.all[:0], e.events[:0], 0, 0
}

// A lookout holds the records that are identified ahead of the current one.
type lookout struct {
	early   earlySightings // see lookEarly
	touched byte           // keeps the compiler from removing touch
	ahead   [lookAhead]sighting
	events  []engine.Event // of those ahead
	unused  []*delivery    // see deliver
	made    int            // deliveries so far
	waiting []*delivery    // for their handlers, or handled
}

// deliver returns a delivery of rec. Deliveries are allocated a few at a time, and twice as many the next time.
func (p *lookout) deliver(rec *kgo.Record) *delivery {
	if len(p.unused) == 0 {
		made := make([]delivery, min(max(2, p.made), lookAhead))
		p.made += len(made)
		for i := range made {
			p.unused = append(p.unused, &made[i])
		}
	}
	d := p.unused[len(p.unused)-1]
	p.unused = p.unused[:len(p.unused)-1]
	d.Record, d.Attempt = rec, 1
	return d
}

// recycle makes a delivery available again, or if it waits for its handler, with the next records.
func (p *lookout) recycle(d *delivery) {
	switch {
	case d == nil:
	case d.waits:
		p.waiting = append(p.waiting, d)
	default:
		*d = delivery{}
		p.unused = append(p.unused, d)
	}
}

// recycleAll recycles the deliveries that have waited.
func (p *lookout) recycleAll() {
	for _, d := range p.waiting {
		d.waits = false
		p.recycle(d)
	}
	clear(p.waiting)
	p.waiting = p.waiting[:0]
}

// trim frees memory while there are no records.
func (p *lookout) trim() {
	for i := range p.ahead {
		p.recycle(p.ahead[i].delivery)
		p.ahead[i] = sighting{}
	}
	if len(p.unused) > lookAhead {
		p.unused, p.waiting = append([]*delivery(nil), p.unused[:lookAhead]...), nil
	}
}

// sight identifies a record.
func (r *partitionState) sight(rec *kgo.Record) sighting {
	s := sighting{delivery: r.lookout.deliver(rec)}
	s.err = r.identify(&s)
	return s
}

// identify finds the event of a record: the original event for the replay of a dead letter whose
// event was claimed, otherwise by the route's rules.
func (r *partitionState) identify(s *sighting) error {
	d, route := s.delivery, r.partition.route
	if r.large.is(d.Record) {
		return r.large.err
	}
	d.Event.Scope, d.Event.Window = route.Scope, route.Window
	d.Event.Sent = identify.Sent(d.Record)
	d.Event.Origin = engine.Origin{Topic: d.Record.Topic, Partition: d.Record.Partition, Offset: d.Record.Offset}
	id, err := identityOf(r, d)
	if errors.Is(err, identify.ErrNoTime) && route.Window > 0 {
		err = nil
	}
	if IsTransient(err) || errors.Is(err, identify.ErrNoTopicID) {
		return err
	}
	if d.replay, s.refused = r.issuer.Replay(d.Record, id); d.replay != nil {
		r.partition.handlers.hands.give(d) // the replay shares memory with the adapter's copy
		d.replay, s.refused = r.issuer.Replay(d.Record, id)
	}
	switch rep := d.replay; {
	case rep == nil:
	case rep.Sealed.Claimed:
		id, err = rep.Sealed.Event, nil
		s.generation, s.replayed = rep.Sealed.Generation, true
	case id.IDRule == identify.IDPosition:
		id.ID, id.IDRule = rep.Sealed.Event.ID, rep.Sealed.Event.IDRule
		if id.TimeRule == identify.TimeRecord && route.Window == 0 {
			// All replays of the letter are one event, and each has another timestamp. Only for a position,
			// which is never used again: another event may have the same id in another week.
			d.Event.Window = r.longest
		}
	}
	if err == nil {
		s.badTimes = id.BadTimes
		d.idRule, d.timeRule = id.IDRule, id.TimeRule
		d.Event.ID, d.Event.Time, d.Event.ApproximateTime = r.partition.handlers.hands.own().bytes(id.ID), id.Time, id.ApproximateTime
		if !s.replayed && route.Fingerprint != nil {
			lent := new(kgo.Record)
			r.partition.handlers.hands.lend(d.Record, lent)
			d.Event.Fingerprint, err = route.fingerprint(lent)
		}
	}
	if d.replay != nil || len(d.Record.Value) == 0 { // otherwise the record was derived from a replay
		if incomplete := deadletter.Incomplete(d.Record); incomplete != nil {
			return incomplete
		}
	}
	return err
}

// identityOf returns the identity of a record by the route's rules.
func identityOf(r *partitionState, d *delivery) (identify.Identity, error) {
	topic := r.issuer.TopicOf(d.Record)
	if topic == d.Record.Topic {
		return r.rules.Identify(d.Record, r.topicID)
	}
	r.partition.handlers.hands.give(d) // moved shares memory with the adapter's copy
	moved := *d.Record
	moved.Topic = topic
	return r.rules.Identify(&moved, r.topicID)
}

// touch reads a few bytes of the headers and values of all records. The records were decoded a
// while ago and are no longer in the processor's caches. Reading them in a tight loop lets the
// cache misses overlap.
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
