package enginetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

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

// lease notes the lease that comes with a claim, if there is one.
func (m *model) lease(ev engine.Event, k claimKey, r engine.Result) {
	if r.Lease != nil {
		m.lent = append(m.lent, modelLease{r.Lease, ev, k, r.Record.Owner, m.clock})
	}
}

// ended is a record at the end of its lease.
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

// pick returns a lease: most often a late one, as few hold their claims for long.
func (m *model) pick(t *rapid.T) modelLease {
	return m.lent[len(m.lent)-1-rapid.IntRange(0, min(3, len(m.lent)-1)).Draw(t, "lease")]
}

// useLease finishes, renews or releases a claim by itself.
func (m *model) useLease(t *rapid.T) {
	if len(m.lent) == 0 {
		return
	}
	l, ctx := m.pick(t), context.Background()
	rec, holds := m.told.claims[l.key], m.holds(l)
	var err error
	switch do := rapid.SampledFrom([]string{"finish", "renew", "release"}).Draw(t, "use"); do {
	case "finish":
		data := rapid.SampledFrom([]string{"", "result"}).Draw(t, "data")
		err = m.e.Finish(ctx, l.Lease, []byte(data))
		rec = ended(rec, engine.Done, data)
	case "renew":
		rec.LeaseEnd, err = m.e.Renew(ctx, l.Lease, time.Hour)
		if holds && !rec.LeaseEnd.Equal(m.clock.Add(time.Hour)) {
			m.Fatalf("renewing %v: it ends at %v", l.key, rec.LeaseEnd)
		}
	case "release":
		err = m.e.Release(ctx, l.Lease)
		rec = ended(rec, engine.Released, "")
		rec.Fingerprint = ""
	}
	if holds != (err == nil) || !holds && !errors.Is(err, engine.ErrLeaseLost) {
		m.Fatalf("a lease on %v, which holds it %v: %v", l.key, holds, err)
	}
	if holds {
		m.told.claims[l.key] = rec
	}
}

// finishIn finishes a claim in a transaction.
func (m *model) finishIn(t *rapid.T, tx *engine.Tx, x *modelTx) {
	if len(m.lent) == 0 {
		return
	}
	l := m.pick(t)
	rec, own := x.claims[l.key]
	if !own {
		rec = m.told.claims[l.key]
	}
	var want error
	switch {
	case x.lost:
		want = engine.ErrConflict
	case l.key.week < m.oldestOf(l.key.scope), rec.State != engine.Leased, rec.Owner != l.owner:
		want = engine.ErrLeaseLost
	case !own && m.held[l.key]:
		want = engine.ErrConflict
	}
	if err := tx.Finish(l.Lease, []byte("in a transaction")); !errors.Is(err, want) || want == nil && err != nil {
		m.Fatalf("finishing %v: %v, want %v", l.key, err, want)
	}
	if want != nil {
		return
	}
	x.claims[l.key] = ended(rec, engine.Done, "in a transaction")
	if !own {
		x.finishes[l.key], m.held[l.key] = l, true
	}
}

// setData keeps data with a claim of the transaction, or with an event that it has not claimed.
func (m *model) setData(t *rapid.T, tx *engine.Tx, x *modelTx) {
	ev, k := m.event(t)
	if own := slices.SortedFunc(maps.Keys(x.claims), func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) }); len(own) > 0 {
		k = rapid.SampledFrom(own).Draw(t, "claim")
		ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	}
	rec, own := x.claims[k]
	var want error
	switch {
	case x.lost:
		want = engine.ErrConflict
	case !own:
		want = engine.ErrNotClaimed
	}
	if err := tx.SetData(ev, []byte("data")); !errors.Is(err, want) || want == nil && err != nil {
		m.Fatalf("data for %v: %v, want %v", k, err, want)
	}
	if want != nil {
		return
	}
	if rec.State == engine.Leased {
		rec = ended(rec, engine.Done, "")
	}
	rec.Data = "data"
	x.claims[k] = rec
}
