package enginetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

func (m *model) event(t *rapid.T) (engine.Event, claimKey) {
	week := m.week() + weekbucket.Week(rapid.IntRange(0, 7).Draw(t, "week")) - 5
	m.n++
	ev := engine.Event{
		Scope:           rapid.SampledFrom([]string{"a", "ab", "a\x00"}).Draw(t, "scope"),
		ID:              []byte(rapid.SampledFrom([]string{"1", "2", "3", "\x00", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"}).Draw(t, "id")),
		Time:            week.Start().Add(time.Duration(rapid.IntRange(0, 7*24-1).Draw(t, "hour")) * time.Hour),
		ApproximateTime: rapid.IntRange(0, 2).Draw(t, "log time") == 0,
		Origin:          engine.Origin{Topic: rapid.SampledFrom([]string{"t", "u"}).Draw(t, "topic"), Offset: m.n},
		Window:          rapid.SampledFrom(modelWindows).Draw(t, "window"),
	}
	if rapid.IntRange(0, 3).Draw(t, "leased") == 0 {
		ev.Lease = rapid.SampledFrom([]time.Duration{time.Hour, 20 * time.Hour}).Draw(t, "lease")
	}
	if rapid.IntRange(0, 3).Draw(t, "identified") == 0 {
		ev.Fingerprint = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "fingerprint")
	}
	ev.Window = m.kept(ev.Scope, ev.Window)
	if ev.Window > 0 && rapid.Bool().Draw(t, "arrives") {
		ev.Time, week = time.Time{}, m.week()
	}
	return ev, claimKey{ev.Scope, week, string(ev.ID)}
}

var modelWindows = []time.Duration{0, 0, 0, time.Hour, 30 * time.Hour, engine.DefaultRetentionWeeks * 7 * 24 * time.Hour}

// near are the other weeks in which a claim counts: the ones before and after, if the time is
// approximate, and those that the window reaches back to, if there is no time.
func (m *model) near(ev engine.Event, k claimKey) (keys []claimKey) {
	first := k.week
	switch {
	case ev.Time.IsZero() && ev.Window > 0:
		first, _ = weekbucket.Of(m.clock.Add(-ev.Window))
	case ev.ApproximateTime:
		first--
	default:
		return nil
	}
	for week := first; week <= k.week+1; week++ {
		if week != k.week {
			keys = append(keys, claimKey{k.scope, week, k.id})
		}
	}
	return keys
}

// expired reports whether the claim's window has ended.
func (m *model) expired(rec engine.Record) bool {
	return rec.Window > 0 && m.clock.Sub(rec.FirstSeen) >= rec.Window
}

// free reports whether the event can take the claim.
func (m *model) free(ev engine.Event, rec engine.Record) bool {
	if m.mismatch(ev, rec) {
		return false
	}
	switch rec.State {
	case engine.Released:
		return true
	case engine.Leased:
		return !m.clock.Before(rec.LeaseEnd)
	}
	return m.expired(rec)
}

func (m *model) mismatch(ev engine.Event, rec engine.Record) bool {
	return ev.Fingerprint != "" && rec.Fingerprint != "" && ev.Fingerprint != rec.Fingerprint && !m.expired(rec)
}

// answer is the result for a claim that exists and is not free.
func (m *model) answer(ev engine.Event, rec engine.Record, own bool) engine.Result {
	switch {
	case m.mismatch(ev, rec):
		return engine.Result{Verdict: engine.Mismatch, Record: rec}
	case rec.State == engine.Leased && !own:
		return engine.Result{Verdict: engine.Pending, Record: rec}
	}
	return engine.Result{Verdict: engine.Duplicate, Record: rec}
}

// isNear reports whether this is the record of a claim in a week near that counts.
func (m *model) isNear(ev engine.Event, k claimKey, rec engine.Record) bool {
	return slices.ContainsFunc(m.near(ev, k), func(n claimKey) bool {
		there, ok := m.told.claims[n]
		return ok && there == rec && !m.free(ev, rec)
	})
}

// expect is the verdict of an event, and the claim that it is a duplicate of. tx is nil for an
// own-commit claim; a claim that is dead-lettered with the generation reopen, if that is not nil,
// is open.
func (m *model) expect(ev engine.Event, k claimKey, tx *modelTx, reopen *uint64) (r engine.Result, of claimKey) {
	if ev.Time.Sub(m.clock) > engine.DefaultAllowedSkew {
		return engine.Result{Verdict: engine.TooNew}, k
	}
	if k.week < m.oldestOf(k.scope) {
		return engine.Result{Verdict: engine.TooOld}, k
	}
	own := map[claimKey]engine.Record{}
	if tx != nil {
		own = tx.claims
	}
	inFlight := m.held[k]
	rec, there := m.told.claims[k]
	free := there && m.free(ev, rec)
	open := there && reopen != nil && rec.State == engine.DeadLettered && rec.Generation == *reopen
	if mine, ok := own[k]; ok {
		return m.answer(ev, mine, true), k
	}
	if there && !open && !free {
		return m.answer(ev, rec, false), k
	}
	if !there || free {
		near := m.near(ev, k)
		inFlight = inFlight || m.heldNear(near, tx != nil && !ev.Time.IsZero())
		if r, of, found := m.nearby(ev, near, own); found {
			return r, of
		}
	}
	if inFlight {
		return engine.Result{Verdict: engine.InFlight}, k
	}
	next := m.newRecord(ev)
	if there {
		replaces(&next, rec, free)
	}
	return engine.Result{Verdict: engine.Claimed, Record: next}, k
}

// replaces completes the record of a claim that is made in place of an earlier one, which was free
// or is a dead letter that is replayed.
func replaces(next *engine.Record, rec engine.Record, free bool) {
	next.Generation = rec.Generation + 1
	if !free {
		next.FirstSeen, next.Origin, next.Window, next.Fingerprint = rec.FirstSeen, rec.Origin, rec.Window, rec.Fingerprint
	}
}

// heldNear reports whether an open transaction holds one of the claims, dropped ones too if these
// count: a transaction that cannot commit still reserves.
func (m *model) heldNear(near []claimKey, dropped bool) bool {
	return slices.ContainsFunc(near, func(n claimKey) bool {
		return m.held[n] && (dropped || n.week >= m.oldestOf(n.scope))
	})
}

// nearby is the result for the first claim that counts in a week near: the transaction's own before
// those of others.
func (m *model) nearby(ev engine.Event, near []claimKey, own map[claimKey]engine.Record) (r engine.Result, of claimKey, found bool) {
	for _, n := range near {
		if rec, ok := own[n]; ok {
			return m.answer(ev, rec, true), n, true
		}
	}
	for _, n := range near {
		if rec, ok := m.told.claims[n]; ok && !m.free(ev, rec) {
			return m.answer(ev, rec, false), n, true
		}
	}
	return r, of, false
}

func (m *model) newRecord(ev engine.Event) engine.Record {
	rec := engine.Record{State: engine.Done, FirstSeen: m.clock, Origin: ev.Origin, Window: ev.Window, Fingerprint: ev.Fingerprint}
	if ev.Lease > 0 {
		rec.State, rec.LeaseEnd = engine.Leased, m.clock.Add(ev.Lease)
	}
	return rec
}

// checkResult compares a result with the one that is wanted, and returns the latter with the owner
// that the engine chose.
func (m *model) checkResult(r engine.Result, err error, want engine.Result, k claimKey) engine.Result {
	if want.First() && want.Record.State == engine.Leased && r.Record.Owner != 0 && r.Lease != nil {
		want.Record.Owner, want.Lease = r.Record.Owner, r.Lease
	}
	if err != nil || r != want {
		m.Fatalf("%v: told %+v, %v; want %+v", k, r, err, want)
	}
	return want
}

func (m *model) claim(t *rapid.T) {
	ev, k := m.event(t)
	want, _ := m.expect(ev, k, nil, nil)
	r, err := m.e.TryClaim(context.Background(), ev)
	if want = m.checkResult(r, err, want, k); want.First() {
		m.claimed(k, want.Record)
		m.lease(ev, k, want)
	}
}

// claimed notes an own-commit claim. A transaction that saw the dead letter before it has lost.
func (m *model) claimed(k claimKey, rec engine.Record) {
	if m.told.claims[k].State == engine.DeadLettered {
		for _, x := range m.open {
			x.changed[claimName(k)] = true
		}
	}
	m.told.claims[k] = rec
}

func (m *model) batch(t *rapid.T) {
	var events []engine.Event
	var keys []claimKey
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		ev, k := m.event(t)
		events, keys = append(events, ev), append(keys, k)
	}
	rs, err := m.e.TryClaimBatch(context.Background(), events)
	if err != nil {
		m.Fatalf("a batch: %v", err)
	}
	for i, k := range keys {
		want, _ := m.expect(events[i], k, nil, nil)
		if rs[i].Record != (engine.Record{}) && !want.First() && m.isNear(events[i], k, rs[i].Record) {
			want = m.answer(events[i], rs[i].Record, false) // of several claims any: it may have been found before this one was made
		}
		if want = m.checkResult(rs[i], rs[i].Err, want, k); want.First() {
			m.claimed(k, want.Record)
			m.lease(events[i], k, want)
		}
	}
}

func (m *model) forget(t *rapid.T) {
	_, k := m.event(t)
	_, there := m.told.claims[k]
	found, err := m.e.Forget(context.Background(), k.scope, []byte(k.id), k.week.Start())
	if m.held[k] {
		if !errors.Is(err, engine.ErrConflict) {
			m.Fatalf("forgetting %v, which is held: %v", k, err)
		}
		return
	}
	if err != nil || found != there {
		m.Fatalf("forgetting %v: %v %v, want %v", k, found, err, there)
	}
	if m.told.claims[k].State == engine.DeadLettered {
		for _, x := range m.open {
			x.changed[claimName(k)] = true
		}
	}
	delete(m.told.claims, k)
}
