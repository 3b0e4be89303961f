package engine

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/weekbucket"
)

// leased returns a candidate for the claim of the lease l. Its near places are all places in which
// the event can have been claimed since.
func (f *finder) leased(r *claimSet, l *Lease) (c candidate, err error) {
	if l == nil {
		return c, fmt.Errorf("%w (it is nil: set Event.Lease)", ErrLeaseLost)
	}
	// The event was checked when it was claimed, perhaps by an engine with other options: these do
	// not end a lease.
	week, err := weekbucket.Of(l.event.when(l.seen))
	if err != nil || week < f.oldestOf(l.event.Scope) {
		return c, ErrLeaseLost
	}
	f.fillCandidate(&c, r, &l.event, week, l.seen)
	now := f.now()
	this, err := weekbucket.Of(now)
	if err != nil || l.event.arrives() && this > c.week+weekbucket.Week(limits.ArrivalWindow/weekDuration) {
		return c, ErrLeaseLost
	}
	if l.event.countsNear() {
		f.addNear(r, &c, &l.event)
		f.addLater(r, &c, l, this)
	}
	c.seen, c.again, c.change = now, true, &leaseChange{lease: l}
	return c, nil
}

// addLater gives the candidate the weeks after those of addNear in which an event with the time of
// its arrival can have been claimed so far, even if the clock was set back.
func (f *finder) addLater(r *claimSet, c *candidate, l *Lease, this weekbucket.Week) {
	if !l.event.arrives() {
		return
	}
	last := this
	if end, err := weekbucket.Of(l.seen.Add(l.event.Window)); err == nil {
		last = max(last, end)
	}
	for week := c.week + 2; week <= min(last, weekbucket.Max-1)+1; week++ {
		f.addPlace(r, &l.event, week)
	}
	c.nearEnd = len(r.near)
}
