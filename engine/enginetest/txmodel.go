package enginetest

import (
	"maps"
	"slices"

	"github.com/hapax-dev/hapax/engine"
)

// A txModel has the reads and writes of a transaction.
type txModel struct {
	m *model

	claims   map[claimKey]engine.ClaimRecord
	events   map[claimKey]engine.Event // the events of these claims
	again    map[claimKey]bool         // claims that existed before
	finishes map[claimKey]modelLease   // claims that a lease holds
	unclaims map[claimKey]engine.ClaimRecord
	host     map[string]*string // nil is deleted
	adds     map[string]int64   // sums added to keys that are not in host
	offsets  map[int32]int64
	saves    []modelSave

	reads   map[string]bool // keys read from the store
	changed map[string]bool // keys written by others since the transaction began
	told    bool            // a verdict depends on the claims of others
	lost    bool

	ahead []modelEvent // events that were given to Prefetch and are not claimed yet
}

type modelEvent struct {
	event engine.Event
	key   claimKey
}

type modelSave struct {
	point engine.Savepoint
	state *txModel
}

func newTxModel(m *model) *txModel {
	return &txModel{
		m: m, claims: map[claimKey]engine.ClaimRecord{}, host: map[string]*string{}, offsets: map[int32]int64{}, adds: map[string]int64{},
		events: map[claimKey]engine.Event{}, again: map[claimKey]bool{}, finishes: map[claimKey]modelLease{},
		unclaims: map[claimKey]engine.ClaimRecord{}, reads: map[string]bool{}, changed: map[string]bool{},
	}
}

func (x *txModel) clone() *txModel {
	c := *x
	c.claims, c.host, c.offsets, c.adds = maps.Clone(x.claims), maps.Clone(x.host), maps.Clone(x.offsets), maps.Clone(x.adds)
	c.unclaims = maps.Clone(x.unclaims)
	return &c
}

// reading reports whether a read of the store succeeds.
func (x *txModel) reading(name string) bool {
	x.lost = x.lost || x.changed[name]
	if !x.lost {
		x.reads[name] = true
	}
	return !x.lost
}

// seen returns the value of a key after a transaction's own writes and sums.
func (x *txModel) seen(key string) (value string, there bool, err error) {
	if own, ok := x.host[key]; ok {
		if own == nil {
			return "", false, nil
		}
		return *own, true, nil
	}
	value, there = x.m.told.host[key]
	if delta, ok := x.adds[key]; ok {
		value, err = plus(value, there, delta)
		there = err == nil
	}
	return value, there, err
}

// outcome returns the possible errors of a commit, or nil if it succeeds.
func (x *txModel) outcome() (errs []error) {
	overtaken := slices.ContainsFunc(slices.Collect(maps.Keys(x.reads)), func(k string) bool { return x.changed[k] })
	empty := len(x.claims)+len(x.host)+len(x.offsets)+len(x.adds)+len(x.unclaims) == 0
	if x.lost || overtaken && (!empty || x.told) {
		return []error{engine.ErrConflict}
	}
	for k, rec := range x.claims {
		if k.week < x.m.told.oldestOf(k.scope) {
			errs = append(errs, engine.ErrWeekDropped)
			continue
		}
		errs = append(errs, x.refusals(k, rec)...)
	}
	errs = append(errs, x.unclaimRefusals()...)
	if len(errs) > 0 {
		return errs
	}
	for k := range x.adds {
		if _, _, err := x.seen(k); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = []error{nil}
	}
	return errs
}

// refusals returns the possible errors of a commit because of a claim in a retained week.
func (x *txModel) refusals(k claimKey, rec engine.ClaimRecord) (errs []error) {
	if l, ok := x.finishes[k]; ok {
		if !x.m.holds(l) || x.takesOver(k) {
			errs = append(errs, engine.ErrLeaseLost)
		}
		return errs
	}
	ev := x.events[k]
	now, there := x.m.told.claims[k]
	next := there && now.Generation+1 == rec.Generation
	free := next && x.m.free(ev, now)
	switch {
	case there != x.again[k], there && !free && (!next || now.State != engine.DeadLettered):
		return []error{engine.ErrConflict} // it was finished or renewed
	case there && !free: // the replay of a dead letter
		return nil
	}
	for _, n := range x.m.near(ev, k) {
		// it was claimed after the transaction found it absent
		if now, claimed := x.m.told.claims[n]; claimed && !x.m.free(ev, now) {
			errs = append(errs, engine.ErrConflict)
		}
	}
	return errs
}

// takesOver reports whether another claim of the transaction takes over the leased claim k.
func (x *txModel) takesOver(k claimKey) bool {
	for own := range x.claims {
		_, finished := x.finishes[own]
		now, there := x.m.told.claims[own]
		replayed := there && !x.m.free(x.events[own], now)
		if ev := x.events[own]; !finished && !replayed && x.m.free(ev, x.m.told.claims[k]) && slices.Contains(x.m.near(ev, own), k) {
			return true
		}
	}
	return false
}

// unclaimRefusals returns the possible errors of a commit because of withdrawn claims.
func (x *txModel) unclaimRefusals() (errs []error) {
	for k, rec := range x.unclaims {
		now, there := x.m.told.claims[k]
		_, own := x.claims[k]
		switch {
		case k.week < x.m.told.oldestOf(k.scope), own, x.m.held[k], !there, now != rec:
			errs = append(errs, engine.ErrConflict)
		}
	}
	return errs
}

func (x *txModel) commit() {
	for k := range x.claims {
		now, there := x.m.told.claims[k]
		_, finished := x.finishes[k]
		if replayed := there && !x.m.free(x.events[k], now); !finished && !replayed {
			x.m.takesOver(x.events[k], k)
		}
	}
	maps.Copy(x.m.told.claims, x.claims)
	x.takeBack()
	written := map[string]bool{}
	for k := range x.unclaims {
		written[claimName(k)] = true
	}
	for k, rec := range x.claims {
		if rec.Generation > 0 {
			written[claimName(k)] = true
		}
	}
	for k, v := range x.host {
		written[k] = true
		if v == nil {
			delete(x.m.told.host, k)
		} else {
			x.m.told.host[k] = *v
		}
	}
	for k := range x.adds {
		written[k] = true
		x.m.told.host[k], _, _ = x.seen(k)
	}
	for p, next := range x.offsets {
		written[offsetName(p)] = true
		x.m.told.offsets[p] = next
	}
	for _, changed := range x.m.open {
		maps.Copy(changed, written)
	}
}

// takeBack applies the withdrawals of a transaction that committed. A claim with an earlier
// generation is released, and any other is removed.
func (x *txModel) takeBack() {
	for k, rec := range x.unclaims {
		if rec.Generation > 0 {
			rec.Fingerprint = ""
			x.m.told.claims[k] = ended(rec, engine.Released, "")
		} else {
			delete(x.m.told.claims, k)
		}
	}
}

func offsetName(p int32) string { return "offset " + string('0'+p) }
