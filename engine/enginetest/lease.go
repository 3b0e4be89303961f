package enginetest

import (
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A modelLease is a lease that the engine gave.
type modelLease struct {
	*engine.Lease
	event engine.Event
	key   claimKey
	owner uint64
	at    time.Time
}

// ended returns a record at the end of its lease.
func ended(rec engine.Record, state engine.State, data string) engine.Record {
	rec.State, rec.Data, rec.Owner, rec.LeaseEnd = state, data, 0, time.Time{}
	return rec
}

// holds reports whether the lease holds its claim: no other caller has claimed the event since, in
// any week that counts.
func (m *model) holds(l modelLease) bool {
	rec := m.told.claims[l.key]
	if rec.State != engine.Leased || rec.Owner != l.owner {
		return false
	}
	first, last := l.key.week, l.key.week
	switch {
	case l.event.Time.IsZero():
		first, _ = weekbucket.Of(l.at.Add(-l.event.Window))
		end, _ := weekbucket.Of(l.at.Add(l.event.Window))
		last = max(last, m.week(), end) + 1
	case l.event.ApproximateTime:
		first, last = first-1, last+1
	}
	for week := first; week <= last; week++ {
		other, claimed := m.told.claims[claimKey{l.key.scope, week, l.key.id}]
		if week != l.key.week && claimed && !other.FirstSeen.Before(rec.FirstSeen) {
			return false
		}
	}
	return true
}
