package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// An event whose time is the log's (Event.ApproximateTime) may be sent again with another time, and
// so in another week: sent again shortly after Monday 00:00, it would be a new event. So its claim
// is made in its own week, and a claim in the week before or after also counts. A decision about
// such an event looks at all three:
//
//	prepare, TryClaim in a transaction   knownNear   filter, cache, store; most often the filters of all three deny it
//	a transaction's reservation          reserve     fails if one of the three keys is held, by another or by itself
//	committer                            decideNear  what is put, store; finds the claims made since the look
//
// An event with the time of its arrival (no Event.Time, with a Window) is decided in the same way:
// the other weeks are the retained ones with claims, since the claim's own window or lease decides
// how long it lasts, and the next week, in case the clock was set back. A claim there that has ended
// does not count; in the event's own week, its next generation replaces it. The committer takes the
// other weeks again if one got its first claim since the event was prepared.
//
// Such an event reserves only its own key: an event whose time is the producer's may also be
// claimed in the week before or after, and a transaction that saw no claim there then conflicts at
// its commit. Two events with ApproximateTime find each other, whichever of the two comes first.
//
// A lease that has expired in another week is taken over: the batch of the new claim also releases
// the old one (decider.endTakenOver), so that its holder finds out by its own claim.

// countsNear reports whether claims in other weeks than the event's own also count.
func (ev *Event) countsNear() bool { return ev.ApproximateTime || ev.arrives() }

// addNear gives a candidate its adjacent places: the weeks before and after, and for an event with
// the time of its arrival also earlier weeks with claims.
func (f *finder) addNear(r *claimSet, c *candidate, ev *Event) {
	c.nearAt, c.arrives = len(r.near), ev.arrives()
	if c.arrives {
		if r.nearVersion == 0 {
			r.nearVersion = f.filters.Version() // before the weeks
		}
		oldest := f.retained.oldestOf(ev.Scope)
		for _, week := range f.filters.WeeksBefore(c.place.week) {
			if week >= oldest {
				f.addPlace(r, ev, week)
			}
		}
	} else if c.place.week > weekbucket.Min {
		f.addPlace(r, ev, c.place.week-1)
	}
	if c.place.week < weekbucket.Max {
		f.addPlace(r, ev, c.place.week+1)
	}
	c.nearEnd = len(r.near)
}

// renewNear gives a candidate its adjacent places again if weeks may have been added since.
func (f *finder) renewNear(r *claimSet, c *candidate) error {
	if !c.arrives || r.nearVersion == f.filters.Version() {
		return nil
	}
	_, id, err := storage.ParseKey(r.key(&c.place))
	if err != nil {
		return err
	}
	f.addNear(r, c, &Event{Scope: c.scope, ID: id, Window: time.Millisecond})
	return nil
}

func (f *finder) addPlace(r *claimSet, ev *Event, week weekbucket.Week) {
	p := place{week: week, keyAt: len(r.arena)}
	r.arena = storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(r.arena, ev.ID)
	p.keyEnd = len(r.arena)
	p.hash = f.core.hash(r.key(&p))
	r.near = append(r.near, p)
}

// knownNear looks for the claim on an event in its adjacent places, as known does.
func (f *finder) knownNear(r *claimSet, c *candidate) (rec ClaimRecord, at place, found bool, err error) {
	for i := c.nearAt; i < c.nearEnd; i++ {
		at = r.near[i]
		if at.week < f.retained.oldestOf(c.scope) {
			continue // a dropped week has no known claims
		}
		if rec, found, err = f.known(r, &at); err != nil || found && !c.takes(&rec) && !f.core.left.has(r.key(&at)) {
			return rec, at, found, err
		}
	}
	return ClaimRecord{}, place{}, false, nil
}
