package enginetest

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

// unclaim takes back a claim in the store, or fails to: now and again the record is another one, or
// there is no claim but one of the transaction itself.
func (m *model) unclaim(t *rapid.T, tx *engine.Tx, x *modelTx) {
	ev, k := m.event(t)
	keys := slices.Concat(slices.Collect(maps.Keys(m.told.claims)), slices.Collect(maps.Keys(x.claims)))
	slices.SortFunc(keys, func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) })
	if len(keys) > 0 {
		k = rapid.SampledFrom(keys).Draw(t, "claim")
		ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	} else if ev.Time.IsZero() {
		ev.Time = m.clock
	}
	rec, there := m.told.claims[k]
	if own, ok := x.claims[k]; ok && !there {
		rec = own
	}
	there = there && k.week >= m.oldestOf(k.scope)
	if rapid.IntRange(0, 3).Draw(t, "another") == 0 {
		switch rapid.SampledFrom([]string{"delivery", "life", "time", "owner"}).Draw(t, "record") {
		case "delivery":
			rec.Origin.Offset--
		case "life":
			rec.Generation++
		case "time":
			rec.FirstSeen = rec.FirstSeen.Add(-1)
		case "owner":
			rec.Owner++
		}
		there = false
	}
	var want error
	switch {
	case x.lost:
		want = engine.ErrConflict
	case !there:
		want = engine.ErrNotClaimed
	}
	if err := tx.Unclaim(ev, rec); !errors.Is(err, want) || want == nil && err != nil {
		m.Fatalf("taking back %v with %+v: %v, want %v", k, rec, err, want)
	}
	if want == nil {
		x.unclaims[k] = rec
	}
}

// unclaimRefusals are the errors for one of which a transaction cannot take its claims back.
func (m *model) unclaimRefusals(x *modelTx) (errs []error) {
	for k, rec := range x.unclaims {
		now, there := m.told.claims[k]
		_, own := x.claims[k]
		switch {
		case k.week < m.oldestOf(k.scope):
			errs = append(errs, engine.ErrWeekDropped)
		case own, m.held[k], !there, now != rec:
			errs = append(errs, engine.ErrConflict)
		}
	}
	return errs
}

// takeBack takes back what a transaction that committed has taken back: a claim with an earlier
// life is released, any other one is gone.
func (m *model) takeBack(x *modelTx) {
	for k, rec := range x.unclaims {
		if rec.Generation > 0 {
			m.told.claims[k] = ended(rec, engine.Released, "")
		} else {
			delete(m.told.claims, k)
		}
	}
}
