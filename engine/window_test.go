package engine_test

import (
	"fmt"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// heldForPossible makes the filters report events without a claim as possible.
func heldForPossible(t *testing.T, e *engine.Engine, events ...engine.Event) {
	t.Helper()
	mustExpect(t, e, events, engine.Claimed)
	for _, ev := range events {
		if found, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); !found || err != nil {
			t.Fatal(found, err)
		}
	}
}

func TestAbsentClaimIsNotReadAgainByTheCommitter(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	events := make([]engine.Event, 1000)
	for i := range events {
		events[i] = event(fmt.Sprint(i))
	}
	heldForPossible(t, e, events...)
	before := m.Calls(storetest.OpClaim)
	for _, ev := range events[:100] {
		wantVerdict(t, claim(t, e, ev), engine.Claimed)
	}
	if n := m.Calls(storetest.OpClaim) - before; n != 100 {
		t.Errorf("%d reads for 100 events that the filter considered possible", n)
	}
}

// Between the read of an event, in the store or in the filters alone, and its decision, others may
// have claimed it: in a batch that is being decided, is being applied, or was applied long ago.
func TestAClaimMadeAfterTheReadIsFoundByTheCommitter(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	n := 0
	next := func() engine.Event {
		n++
		return event(fmt.Sprint("other ", n))
	}
	old := next()
	wantVerdict(t, claim(t, e, old), engine.Claimed)
	between := map[string]func(){
		"a new event":  func() { wantVerdict(t, claim(t, e, next()), engine.Claimed) },
		"a repetition": func() { wantVerdict(t, claim(t, e, old), engine.Duplicate) },
		"an update":    func() { update(t, e, func(tx *engine.Tx) { _ = tx.Put([]byte("k"), nil) }) },
	}
	for what, do := range between {
		for _, certain := range []bool{true, false} {
			for before := range 4 {
				for after := range 4 {
					ev := next()
					if !certain {
						heldForPossible(t, e, ev)
					}
					decide := e.Prepare(t, ev)
					for range before {
						do()
					}
					first := claim(t, e, ev)
					wantVerdict(t, first, engine.Claimed)
					for range after {
						do()
					}
					got := decide()
					if got.Verdict != engine.Duplicate || !got.Record.FirstSeen.Equal(first.Record.FirstSeen) {
						t.Errorf("%d times %s before and %d times after the claim, certain %v: %v", before, what, after, certain, got)
					}
				}
			}
		}
	}
}

// duringRead calls a function once, after a read of the store that has found a claim, or none.
type duringRead struct {
	*storetest.Mem
	found bool
	do    func()
}

func (s *duringRead) Claim(key []byte) ([]byte, bool, error) {
	b, found, err := s.Mem.Claim(key)
	if do := s.do; do != nil && found == s.found {
		s.do = nil
		do()
	}
	return b, found, err
}

// What a read of the store shows is as old as its begin: batches that are applied before it returns
// may have the claim.
func TestAClaimMadeDuringTheReadIsFoundByTheCommitter(t *testing.T) {
	s := &duringRead{Mem: storetest.NewMem(storage.Identity{})}
	e := open(t, s, engine.Options{})
	e.AwaitBehind(t)
	for after := range 4 {
		ev := event(fmt.Sprint(after))
		heldForPossible(t, e, ev)
		var first engine.Result
		s.do = func() {
			first = claim(t, e, ev)
			wantVerdict(t, first, engine.Claimed)
			for i := range after {
				wantVerdict(t, claim(t, e, event(fmt.Sprint("other ", after, i))), engine.Claimed)
			}
		}
		if got := claim(t, e, ev); got.Verdict != engine.Duplicate || got.Record != first.Record {
			t.Errorf("%d batches after the claim: %v, want a duplicate of %v", after, got, first)
		}
	}
}

// A claim that was read before it was forgotten does not enter the cache after that.
func TestAClaimForgottenDuringTheReadIsNotCached(t *testing.T) {
	s := &duringRead{Mem: storetest.NewMem(storage.Identity{}), found: true}
	e := open(t, s, engine.Options{})
	e.AwaitBehind(t)
	ev := event("a")
	wantVerdict(t, claim(t, e, ev), engine.Claimed)
	s.do = func() {
		if found, err := e.Admin().Forget(ctx, ev.Scope, ev.ID, ev.Time); !found || err != nil {
			t.Error(found, err)
		}
	}
	wantVerdict(t, claim(t, e, ev), engine.Duplicate)
	wantVerdict(t, claim(t, e, ev), engine.Claimed)
}

// What the committer finds new in its window alone is in the filters all the same.
func TestClaimsThatTheWindowShowsToBeNewAreInTheFilters(t *testing.T) {
	e, m := openMem(t, engine.Options{RecentClaims: -1})
	events := manyEvents(1000)
	mustExpect(t, e, events, engine.Claimed)
	if s := stats(t, e); s.FilterNegatives != 1000 || s.FilterFalsePositives != 0 {
		t.Errorf("%d of 1000 events are new by the filters alone, %d by a read", s.FilterNegatives, s.FilterFalsePositives)
	}
	before := m.Calls(storetest.OpClaim)
	mustExpect(t, e, events, engine.Duplicate)
	if n := m.Calls(storetest.OpClaim) - before; n != 1000 {
		t.Errorf("%d of 1000 repeated events were read", n)
	}
}
