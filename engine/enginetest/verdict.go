package enginetest

import (
	"slices"

	"github.com/hapax-dev/hapax/engine"
)

// expect returns the verdict of an event, and the claim of which it is a duplicate. own are the
// claims of its transaction, nil for an at-most-once claim. If reopen is not nil, a claim that was
// dead-lettered with that generation is open.
func (m *model) expect(ev engine.Event, k claimKey, own map[claimKey]engine.ClaimRecord, reopen *uint64) (r engine.Result, of claimKey) {
	if ev.Time.Sub(m.clock) > defaultAllowedSkew {
		return engine.Result{Verdict: engine.TooNew}, k
	}
	if k.week < m.told.oldestOf(k.scope) {
		return engine.Result{Verdict: engine.TooOld}, k
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
		inFlight = inFlight || m.heldNear(near, own != nil && !ev.Time.IsZero())
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

// answer returns the result for a claim that exists and is not free.
func (m *model) answer(ev engine.Event, rec engine.ClaimRecord, own bool) engine.Result {
	switch {
	case m.mismatch(ev, rec):
		return engine.Result{Verdict: engine.Mismatch, Record: rec}
	case rec.State == engine.Leased && !own:
		return engine.Result{Verdict: engine.Pending, Record: rec}
	}
	return engine.Result{Verdict: engine.Duplicate, Record: rec}
}

// isNear reports whether this is the record of a claim that counts in a nearby week.
func (m *model) isNear(ev engine.Event, k claimKey, rec engine.ClaimRecord) bool {
	return slices.ContainsFunc(m.near(ev, k), func(n claimKey) bool {
		there, ok := m.told.claims[n]
		return ok && there == rec && !m.free(ev, rec)
	})
}

// heldNear reports whether an open transaction holds one of the claims, including dropped ones if
// these count, because a transaction that cannot commit still reserves its claims.
func (m *model) heldNear(near []claimKey, dropped bool) bool {
	return slices.ContainsFunc(near, func(n claimKey) bool {
		return m.held[n] && (dropped || n.week >= m.told.oldestOf(n.scope))
	})
}

// nearby returns the result for the first claim that counts in a nearby week. Claims of the
// transaction precede those of others.
func (m *model) nearby(ev engine.Event, near []claimKey, own map[claimKey]engine.ClaimRecord) (r engine.Result, of claimKey, found bool) {
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

// replaces completes the record of a claim that replaces an earlier one, which was free or is a
// dead letter that is replayed.
func replaces(next *engine.ClaimRecord, rec engine.ClaimRecord, free bool) {
	next.Generation = rec.Generation + 1
	if !free {
		next.FirstSeen, next.SentUnixMilli, next.Origin, next.Window, next.Fingerprint = rec.FirstSeen, rec.SentUnixMilli, rec.Origin, rec.Window, rec.Fingerprint
	}
}
