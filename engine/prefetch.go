package engine

import (
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/weekbucket"
)

// An ahead has the results of Prefetch.
type ahead struct {
	set      claimSet // keys only, no claims
	expected []expected
	next     int    // index of the next expected event
	asked    int    // number of events for which the filters were read
	before   uint64 // last batch handed to the store when the filters were read
}

// An expected is an event that was passed to Prefetch.
type expected struct {
	candidate   candidate // its keys are in the arena of the ahead
	idAt, idEnd int       // the id, in the same arena
	time        time.Time
	topic       string
	approximate bool
	timed       bool
	ok          bool // the event can be judged
	new         bool // the filters contained no claim on it, as of ahead.before
}

// hash returns the week and the hash of its claim.
func (x *expected) hash() (weekbucket.Week, uint64) {
	return x.candidate.place.week, x.candidate.place.hash
}

// empty replaces the previous events with room for n.
func (r *ahead) empty(n int) {
	clear(r.expected)
	r.expected, r.set.arena, r.set.near = slices.Grow(r.expected[:0], n)[:n], r.set.arena[:0], r.set.near[:0]
	r.next, r.asked = 0, 0
}

// add prepares an event.
func (r *ahead) add(f *finder, x *expected, ev *Event, now time.Time) {
	var res Result
	// Whether a window or a lease has ended is decided when the event is claimed.
	x.ok = !ev.timed() && f.newCandidate(&r.set, &x.candidate, ev, &res, now)
	if x.ok && ev.countsNear() {
		f.addNear(&r.set, &x.candidate, ev)
	}
	x.candidate.scope, x.time, x.topic, x.approximate, x.timed = ev.Scope, ev.Time, ev.Origin.Topic, ev.ApproximateTime, ev.timed()
	x.idAt = len(r.set.arena)
	r.set.arena = append(r.set.arena, ev.ID...)
	x.idEnd = len(r.set.arena)
}

// ask reads the filters for the next expected events.
func (r *ahead) ask(f *finder, reserved *occ.Reservations) {
	r.before = f.core.applying.Load()
	n := min(askAhead, len(r.expected)-r.asked)
	var names [askAhead]occ.Name
	for i := range n {
		names[i] = r.expected[r.asked+i].candidate.lock
	}
	reserved.Prefetch(names[:n])
	f.filters.Prefetch(n, func(i int) (weekbucket.Week, uint64) { return r.expected[r.asked+i].hash() })
	view := f.filters.View()
	for range n {
		x := &r.expected[r.asked]
		x.new = x.ok && r.set.certainlyNew(&view, &x.candidate)
		r.asked++
	}
}

// probablyClaimed reports which of the events the filters contain. ask reads the filters again,
// shortly before the events are claimed.
func (r *ahead) probablyClaimed(s *filters.Set) []bool {
	claimed := make([]bool, len(r.expected))
	view := s.View()
	if !view.Trusted() {
		return claimed
	}
	for from := 0; from < len(claimed); from += askAhead {
		some := r.expected[from:min(from+askAhead, len(r.expected))]
		s.Prefetch(len(some), func(i int) (weekbucket.Week, uint64) { return some[i].hash() })
		for i := range some {
			x := &some[i]
			claimed[from+i] = x.ok && !r.set.certainlyNew(&view, &x.candidate)
		}
	}
	return claimed
}

// expects returns the prepared data of an event if it is the next one, else nil.
func (r *ahead) expects(f *finder, reserved *occ.Reservations, ev *Event) *expected {
	if r == nil || r.next == len(r.expected) {
		return nil
	}
	if r.next == r.asked {
		r.ask(f, reserved)
	}
	x := &r.expected[r.next]
	if string(r.set.arena[x.idAt:x.idEnd]) != string(ev.ID) || x.time != ev.Time || x.approximate != ev.ApproximateTime ||
		x.timed != ev.timed() || x.candidate.scope != ev.Scope || x.topic != ev.Origin.Topic {
		return nil
	}
	r.next++
	if !x.ok || x.candidate.place.week < f.retained.oldestOf(x.candidate.scope) {
		return nil
	}
	return x
}

func (s *txSpares) newAhead() *ahead {
	if a, ok := s.ahead.Get().(*ahead); ok {
		return a
	}
	return &ahead{}
}

func (s *txSpares) freeAhead(a *ahead) {
	clear(a.expected)
	*a = ahead{set: a.set.emptied(), expected: a.expected[:0]}
	s.ahead.Put(a)
}
