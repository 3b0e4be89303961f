package engine

import "time"

// unclaimed stands in request.refs for a reservation of which no claim was made, or not yet.
const unclaimed = -1

// An expected event is one that Prefetch was told of.
type expected struct {
	candidate
	idAt, idEnd int // the id, in the request's arena
	time        time.Time
	logTime     bool
	ref         int
	open        bool // the claim is reserved, and was not made yet
}

// Prefetch says which events TryClaim will be asked about next, in this order, so that part of the work is done for all of
// them at once: as far as memory tells that an event is new, and nobody holds it, its claim is reserved now. TryClaim tells
// the same as without it; the first sighting is now, and others are told InFlight from now on. TryClaim of something else
// may come in between. What was reserved and not claimed is free again after the next Prefetch, a rollback or the end of
// the transaction. A few dozen events at once are enough. Prefetch keeps nothing of events.
func (tx *Tx) Prefetch(events []Event) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	tx.expectNothing()
	e, r := tx.e, tx.req
	if len(r.claims)+len(events) > MaxTxClaims || len(r.arena) > MaxTxBytes {
		return nil // TryClaim says so when it comes to it
	}
	now := e.now()
	for i := range events {
		r.ahead = append(r.ahead, e.expect(r, &events[i], now))
	}
	before := e.applying.Load()
	for i := range r.ahead {
		x := &r.ahead[i]
		x.open = x.open && e.certainlyNew(r, &x.candidate)
	}
	e.tx.reserveAhead(tx)
	if e.applying.Load() != before { // what was claimed between look and reservation shows in the filter
		for i := range r.ahead {
			if x := &r.ahead[i]; x.open && !e.certainlyNew(r, &x.candidate) {
				e.tx.unreserve(&x.candidate)
				x.open = false
			}
		}
	}
	return nil
}

// expect prepares an event for TryClaim; open says that it may be reserved.
func (e *Engine) expect(r *request, ev *Event, now time.Time) (x expected) {
	var told Result
	if x.candidate, x.open = e.newCandidate(r, ev, &told, now); !x.open {
		return x
	}
	x.lock = e.tx.lockName(r.key(&x.place))
	x.idAt = len(r.arena)
	r.arena = append(r.arena, ev.ID...)
	x.idEnd = len(r.arena)
	x.time, x.logTime = ev.Time, ev.LogTime
	if ev.LogTime {
		e.addNear(r, &x.candidate, ev)
	}
	x.ref = len(r.refs)
	r.refs = append(r.refs, unclaimed)
	return x
}

// certainlyNew reports that no claim was ever put that counts for the candidate, without I/O.
func (e *Engine) certainlyNew(r *request, c *candidate) bool {
	near := r.nearOf(c)
	for i := range near {
		if !e.screen.certainlyNew(near[i].week, near[i].hash) {
			return false
		}
	}
	return e.screen.certainlyNew(c.week, c.hash)
}

// expects returns what Prefetch has prepared for the event, if it is the next one.
func (tx *Tx) expects(ev *Event) *expected {
	r := tx.req
	if tx.next == len(r.ahead) {
		return nil
	}
	x := &r.ahead[tx.next]
	if string(r.arena[x.idAt:x.idEnd]) != string(ev.ID) || x.time != ev.Time || x.scope != ev.Scope || x.logTime != ev.LogTime {
		return nil
	}
	tx.next++
	if uint32(x.week) < tx.e.oldest.Load() {
		return nil // it was dropped since
	}
	return x
}

// expectNoNeighbour has the expected events of this id judged when they come, if claims in other weeks count for them: the
// transaction has just made one that Prefetch did not see.
func (tx *Tx) expectNoNeighbour(id []byte) {
	r := tx.req
	for i := tx.next; i < len(r.ahead); i++ {
		if x := &r.ahead[i]; x.open && x.logTime && string(r.arena[x.idAt:x.idEnd]) == string(id) {
			tx.e.tx.unreserve(&x.candidate)
			x.open = false
		}
	}
}

// expectNothing forgets what Prefetch was told, and gives back what it has reserved and nobody has claimed.
func (tx *Tx) expectNothing() {
	r := tx.req
	for i := range r.ahead {
		if r.ahead[i].open {
			tx.e.tx.releaseAhead(r.ahead[i:])
			break
		}
	}
	clear(r.ahead)
	r.ahead, tx.next = r.ahead[:0], 0
}
