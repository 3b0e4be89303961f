package engine

import (
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// An event whose time is the log's (Event.ApproximateTime) may be sent again with another time:
// shortly after Monday 00:00, it would be a new event. So its claim is made in its own week, and a
// claim in the week before or after also counts. A decision about such an event looks at all three:
//
//	prepare, TryClaim in a transaction   knownNear   filter, cache, store; most often the filters of all three deny it
//	a transaction's reservation          reserve     fails if one of the three keys is held, by another or by itself
//	committer                            decideNear  what is put, store; finds the claims made since the look
//
// An event with the time of its arrival (no Event.Time, with a Window) is decided in the same way.
// Its other weeks are the retained ones with claims, since a claim lasts as long as its own window
// or lease, and the next week, in case the clock was set back. A claim there that has ended does
// not count; in the event's own week, its next generation replaces it. The committer computes the
// other weeks again if one of them got its first claim after the event was prepared.
//
// Such an event reserves only its own key. An event with the producer's time may be claimed in the
// week before or after meanwhile; a transaction that saw no claim there then conflicts at its
// commit. Two events with ApproximateTime find each other, whichever comes first.
//
// An expired lease in another week is taken over: the batch of the new claim also releases the old
// one (decider.endTakenOver), so that the old holder gets ErrLeaseLost.

// countsNear reports whether claims in weeks other than the event's also count.
func (ev *Event) countsNear() bool { return ev.ApproximateTime || ev.arrives() }

// addNear adds a candidate's adjacent places: the weeks before and after; for an event with the
// time of its arrival also earlier weeks with claims.
func (f *finder) addNear(r *claimSet, c *candidate, ev *Event) {
	c.nearAt, c.arrives = len(r.near), ev.arrives()
	if c.arrives {
		if r.nearVersion == 0 {
			r.nearVersion = f.filters.Version() // read before the weeks
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

// renewNear adds a candidate's adjacent places again if weeks may have been added since.
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

// knownNear is known for the adjacent places of an event.
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
