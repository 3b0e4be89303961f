package enginetest

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// lookAhead prefetches some events in the transaction. Later claims of the transaction are on these
// events, and sometimes on others.
func (c *txChecker) lookAhead() error {
	c.x.ahead = nil
	var events []engine.Event
	for range rapid.IntRange(1, 4).Draw(c.t, "ahead") {
		ev, k := c.event(c.t)
		c.x.ahead, events = append(c.x.ahead, modelEvent{ev, k}), append(events, ev)
	}
	return driver.Prefetch(c.tx, events)
}

// claimIn claims an event, which is usually a dead-lettered one if replay is set.
func (c *txChecker) claimIn(replay bool) {
	ev, k := c.event(c.t)
	if len(c.x.ahead) > 0 && rapid.IntRange(0, 3).Draw(c.t, "expected") > 0 {
		ev, k = c.x.ahead[0].event, c.x.ahead[0].key
		c.x.ahead = c.x.ahead[1:]
	}
	try, reopen := c.tx.TryClaim, (*uint64)(nil)
	if replay {
		ev, k = c.deadLettered(ev, k)
		generation := c.told.claims[k].Generation + rapid.SampledFrom([]uint64{0, 0, 0, 1, ^uint64(0)}).Draw(c.t, "generation")
		reopen = &generation
		try = func(ev engine.Event) (engine.Result, error) { return c.tx.TryReopen(ev, generation) }
	}
	r, err := try(ev)
	if c.x.lost {
		if !errors.Is(err, engine.ErrConflict) {
			c.Fatalf("claiming in a transaction with a conflict: %v", err)
		}
		return
	}
	want, of := c.expect(ev, k, c.x.claims, reopen)
	_, own := c.x.claims[of]
	want = c.checkResult(r, err, want, k)
	c.x.told = c.x.told || want.Verdict != engine.InFlight && want.Verdict != engine.TooNew
	if want.IsClaimed() {
		_, c.x.again[k] = c.told.claims[k]
		delete(c.x.finishes, k)
		c.lease(k, want)
		c.x.claims[k], c.x.events[k] = want.Record, ev
		c.held[k] = true
	}
	if name := claimName(of); !own && !want.IsClaimed() && want.Record.State == engine.DeadLettered && !c.x.reads[name] {
		c.x.reads[name] = true
		delete(c.x.changed, name) // the key was read in its current state
	}
}

// deadLettered picks an event with a dead-lettered claim; if there is none, it is the one given.
func (c *txChecker) deadLettered(ev engine.Event, k claimKey) (engine.Event, claimKey) {
	var keys []claimKey
	for k, rec := range c.told.claims {
		if rec.State == engine.DeadLettered {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return ev, k
	}
	slices.SortFunc(keys, func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) })
	k = rapid.SampledFrom(keys).Draw(c.t, "dead letter")
	ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	ev.Window = c.kept(ev.Scope, ev.Window)
	return ev, k
}

// letter dead-letters a claim of the transaction, or tries to for an event that it has not claimed.
func (c *txChecker) letter() {
	ev, k := c.event(c.t)
	if own := slices.SortedFunc(maps.Keys(c.x.claims), func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) }); len(own) > 0 {
		k = rapid.SampledFrom(own).Draw(c.t, "claim")
		ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	}
	rec, err := c.tx.DeadLetter(ev)
	want, claimed := c.x.claims[k]
	switch {
	case c.x.lost:
		if !errors.Is(err, engine.ErrConflict) {
			c.Fatalf("dead-lettering in a transaction with a conflict: %v", err)
		}
	case !claimed:
		if !errors.Is(err, engine.ErrNotClaimed) {
			c.Fatalf("dead-lettering %v, which was not claimed: %v", k, err)
		}
	default:
		if want.State != engine.DeadLettered {
			want = ended(want, engine.DeadLettered, "")
		}
		c.x.claims[k] = want
		if err != nil || rec != want {
			c.Fatalf("dead-lettering %v: %+v, %v; want %+v", k, rec, err, want)
		}
	}
}

// finishIn finishes a claim in a transaction.
func (c *txChecker) finishIn() {
	if len(c.lent) == 0 {
		return
	}
	l := c.pick(c.t)
	rec, own := c.x.claims[l.key]
	if !own {
		rec = c.told.claims[l.key]
	}
	var want error
	switch {
	case c.x.lost:
		want = engine.ErrConflict
	case l.key.week < c.told.oldestOf(l.key.scope), rec.State != engine.Leased, rec.Owner != l.owner:
		want = engine.ErrLeaseLost
	case !own && c.held[l.key]:
		want = engine.ErrConflict
	}
	if err := c.tx.Finish(l.Lease, []byte("in a transaction")); !errors.Is(err, want) || want == nil && err != nil {
		c.Fatalf("finishing %v: %v, want %v", l.key, err, want)
	}
	if want != nil {
		return
	}
	c.x.claims[l.key] = ended(rec, engine.Done, "in a transaction")
	if !own {
		c.x.finishes[l.key], c.held[l.key] = l, true
	}
}

// setData stores data with a claim of the transaction, or tries to for an event that it has not
// claimed.
func (c *txChecker) setData() {
	ev, k := c.event(c.t)
	if own := slices.SortedFunc(maps.Keys(c.x.claims), func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) }); len(own) > 0 {
		k = rapid.SampledFrom(own).Draw(c.t, "claim")
		ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	}
	rec, own := c.x.claims[k]
	var want error
	switch {
	case c.x.lost:
		want = engine.ErrConflict
	case !own:
		want = engine.ErrNotClaimed
	}
	if err := c.tx.SetData(ev, []byte("data")); !errors.Is(err, want) || want == nil && err != nil {
		c.Fatalf("data for %v: %v, want %v", k, err, want)
	}
	if want != nil {
		return
	}
	if rec.State == engine.Leased {
		rec = ended(rec, engine.Done, "")
	}
	rec.Data = "data"
	c.x.claims[k] = rec
}

// unclaim withdraws a claim in the store. This sometimes fails, because the record is another one,
// or because only the transaction itself has a claim.
func (c *txChecker) unclaim() {
	ev, k := c.event(c.t)
	keys := slices.Concat(slices.Collect(maps.Keys(c.told.claims)), slices.Collect(maps.Keys(c.x.claims)))
	slices.SortFunc(keys, func(a, b claimKey) int { return cmp.Compare(a.String(), b.String()) })
	if len(keys) > 0 {
		k = rapid.SampledFrom(keys).Draw(c.t, "claim")
		ev.Scope, ev.ID, ev.Time = k.scope, []byte(k.id), k.week.Start()
	} else if ev.Time.IsZero() {
		ev.Time = c.clock
	}
	rec, there := c.told.claims[k]
	if own, ok := c.x.claims[k]; ok && !there {
		rec = own
	}
	there = there && k.week >= c.told.oldestOf(k.scope)
	if rapid.IntRange(0, 3).Draw(c.t, "another") == 0 {
		switch rapid.SampledFrom([]string{"delivery", "life", "time", "owner"}).Draw(c.t, "record") {
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
	case c.x.lost:
		want = engine.ErrConflict
	case !there:
		want = engine.ErrNotClaimed
	}
	if err := driver.Unclaim(c.tx, ev, rec); !errors.Is(err, want) || want == nil && err != nil {
		c.Fatalf("withdrawing %v with %+v: %v, want %v", k, rec, err, want)
	}
	if want == nil {
		c.x.unclaims[k] = rec
	}
}
