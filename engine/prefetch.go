package engine

import (
	"slices"
	"time"
)

// askAhead is how many events the filters are asked about at once. What they answer holds as long
// as no batch is applied.
const askAhead = 32

// Prefetch says which events TryClaim will be asked about next, in this order, so that part of the
// work is done for all of them at once: keys and hashes are made, and the filters are asked about
// some at a time when the first of these comes. It holds nothing, changes no verdict, and keeps
// nothing of events; TryClaim of something else may come in between. The first sighting of what is
// claimed is now. Events with a window, a lease or a fingerprint are not prepared. A few dozen
// events at once are enough, but see Expecting.
func (tx *Tx) Prefetch(events []Event) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	e := tx.e
	if tx.ahead == nil {
		tx.ahead = e.reused.newAhead()
	}
	r := tx.ahead
	clear(r.expected)
	r.expected, r.arena, r.near = slices.Grow(r.expected[:0], len(events))[:len(events)], r.arena[:0], r.near[:0]
	tx.next, tx.asked = 0, 0
	now := e.now()
	for i := range events {
		e.expect(r, &r.expected[i], &events[i], now)
	}
	return nil
}

// ask asks the filters about the events that are expected next.
func (tx *Tx) ask() {
	e, r := tx.e, tx.ahead
	tx.before = e.applying.Load()
	for range min(askAhead, len(r.expected)-tx.asked) {
		x := &r.expected[tx.asked]
		x.new = x.ok && e.certainlyNew(&r.claimSet, &x.candidate)
		tx.asked++
	}
}

func (e *transactor) expect(r *ahead, x *expected, ev *Event, now time.Time) {
	var told Result
	// Whether a window or a lease has ended is decided when the event is claimed.
	if x.ok = !ev.timed() && e.newCandidate(&r.claimSet, &x.candidate, ev, &told, now); x.ok {
		x.lock = e.tx.lockName(r.key(&x.place))
		if ev.countsNear() {
			e.addNear(&r.claimSet, &x.candidate, ev)
		}
	}
	x.scope, x.time, x.topic, x.approximate, x.timed = ev.Scope, ev.Time, ev.Origin.Topic, ev.ApproximateTime, ev.timed()
	x.idAt = len(r.arena)
	r.arena = append(r.arena, ev.ID...)
	x.idEnd = len(r.arena)
}

// certainlyNew reports that no claim was ever put that counts for the candidate, without I/O.
func (e *transactor) certainlyNew(r *claimSet, c *candidate) bool {
	near := r.nearOf(c)
	for i := range near {
		if !e.screen.certainlyNew(near[i].week, near[i].hash) {
			return false
		}
	}
	return e.screen.certainlyNew(c.week, c.hash)
}

// expects returns what Prefetch has prepared, if this is the event that comes next.
func (tx *Tx) expects(ev *Event) *expected {
	if tx.ahead == nil || tx.next == len(tx.ahead.expected) {
		return nil
	}
	if tx.next == tx.asked {
		tx.ask()
	}
	x := &tx.ahead.expected[tx.next]
	if string(tx.ahead.arena[x.idAt:x.idEnd]) != string(ev.ID) || x.time != ev.Time || x.approximate != ev.ApproximateTime ||
		x.timed != ev.timed() || x.scope != ev.Scope || x.topic != ev.Origin.Topic {
		return nil
	}
	tx.next++
	if !x.ok || x.week < tx.e.oldestOf(x.scope) {
		return nil
	}
	return x
}

// take makes an expected candidate one of the transaction's own request.
func (tx *Tx) take(c *candidate) {
	r, near := tx.req, tx.ahead.nearOf(c)
	c.place = r.take(&tx.ahead.claimSet, &c.place)
	c.nearAt = len(r.near)
	for i := range near {
		r.near = append(r.near, r.take(&tx.ahead.claimSet, &near[i]))
	}
	c.nearEnd = len(r.near)
}
