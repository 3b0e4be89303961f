package engine

import (
	"fmt"

	"github.com/hapax-dev/hapax/weekbucket"
)

// leased returns a candidate for the claim of l.
func (f *finder) leased(r *claimSet, l *Lease) (c candidate, err error) {
	if l == nil {
		return c, fmt.Errorf("%w (it is nil: set Event.Lease)", ErrLeaseLost)
	}
	// The event was checked when it was claimed, perhaps by an engine with other options; different
	// options do not end a lease.
	week, err := weekbucket.Of(l.event.when(l.seen))
	if err != nil || week < f.retained.oldestOf(l.event.Scope) {
		return c, ErrLeaseLost
	}
	f.fillCandidate(&c, r, &l.event, week, l.seen)
	c.seen, c.again, c.change = f.core.now(), true, &leaseChange{lease: l}
	return c, nil
}
