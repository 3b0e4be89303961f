package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// short retains two weeks of mail, and four of the other scopes.
func short(now func() time.Time) engine.Options {
	return engine.Options{RetentionWeeks: 4, ScopeRetention: map[string]int{"mail": 2}, ExpectedPerWeek: 1000, Clock: now}
}

// wantOfScopes returns the violations: the events of mail from this week on, and all others, must
// be claimed.
func wantOfScopes(t *testing.T, e *engine.Engine, events []engine.Event, mailFrom weekbucket.Week) error {
	t.Helper()
	for _, ev := range events {
		want := engine.Duplicate
		if ev.Scope == "mail" && weekOf(t, ev.Time) < mailFrom || weekOf(t, ev.Time) < e.Retention().OldestWeek() {
			want = engine.TooOld
		}
		if err := expect(e, []engine.Event{ev}, want); err != nil {
			return err
		}
	}
	return nil
}

func TestAScopeMayBeRetainedForLessThanTheOthers(t *testing.T) {
	e, m, c := openAt(t, short(nil))
	events := inWeeks(-4, 0, 10)
	mustExpect(t, e, events, engine.Claimed)
	r, err := e.Retention().DropExpired(ctx)
	wantDrop(t, r, err, 0, 2, "")
	if want := map[string]weekbucket.Week{"mail": weekOf(t, weeksLater(-2))}; !maps.Equal(r.Scopes, want) {
		t.Errorf("scopes %v, want %v", r.Scopes, want)
	}
	if err := wantOfScopes(t, e, events, weekOf(t, weeksLater(-2))); err != nil {
		t.Error(err)
	}
	late := at("late", weeksLater(-3))
	late.Scope = "mail"
	mustExpect(t, e, []engine.Event{late}, engine.TooOld)
	late.Scope = "billing"
	mustExpect(t, e, []engine.Event{late}, engine.Claimed)
	for _, b := range bucketsOf(t, m) {
		if b.Scope == "mail" && b.Week < weekOf(t, weeksLater(-2)) {
			t.Errorf("%v is still there", b)
		}
	}
	if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 {
		t.Errorf("verify: %+v, %v", r, err)
	}

	c.set(weeksLater(3)) // the others reach it: the mark is removed
	for range 3 {
		if _, err := e.Retention().DropExpired(ctx); err != nil {
			t.Fatal(err)
		}
	}
	wantOldest(t, e, -1)
	c.set(weeksLater(5))
	mustExpect(t, e, inWeeks(1, 4, 10), engine.Claimed)
	for range 3 {
		if _, err := e.Retention().DropExpired(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, found, err := m.State([]byte("fmail")); err != nil || !found {
		t.Errorf("the mark of mail is removed before the others have reached it: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	c.set(weeksLater(20))
	e = open(t, again, engine.Options{RetentionWeeks: 4, Clock: c.now})
	if _, err := e.Retention().DropAllExpired(ctx); err != nil {
		t.Fatal(err)
	}
	if _, found, err := again.State([]byte("fmail")); err != nil || found {
		t.Errorf("the mark of mail is never removed: %v", err)
	}
}

// weeksOf returns the weeks in which the engine counts claims of a scope.
func weeksOf(t *testing.T, e *engine.Engine, scope string) (list []weekbucket.Week) {
	t.Helper()
	weeks, err := e.Weeks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range weeks {
		if slices.ContainsFunc(w.Scopes, func(s engine.ScopeInfo) bool { return s.Scope == scope }) {
			list = append(list, w.Week)
		}
	}
	return list
}

// The counts of dropped claims are removed with them, also if they come from a snapshot or from the
// journal.
func TestDroppedWeeksOfAScopeAreNotListed(t *testing.T) {
	o := short(nil)
	e, m, c := openAt(t, o)
	mustExpect(t, e, inWeeks(-4, 0, 10), engine.Claimed)
	if _, err := e.Retention().DropExpired(ctx); err != nil {
		t.Fatal(err)
	}
	crashed := m.CrashClone(0)
	var kept, all []weekbucket.Week
	for w := -4; w <= 0; w++ {
		if all = append(all, weekOf(t, weeksLater(w))); w >= -2 {
			kept = append(kept, weekOf(t, weeksLater(w)))
		}
	}
	want := func(e *engine.Engine, when string) {
		t.Helper()
		if got := weeksOf(t, e, "mail"); !slices.Equal(got, kept) {
			t.Errorf("%s: mail in %v, want %v", when, got, kept)
		}
		if got := weeksOf(t, e, "billing"); !slices.Equal(got, all) {
			t.Errorf("%s: billing in %v, want %v", when, got, all)
		}
	}
	want(e, "after the drop")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	closed, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	o.Clock = c.now
	for _, from := range []struct {
		m      *storetest.Mem
		source string
	}{{closed, engine.FromSnapshot}, {crashed, engine.FromJournal}} {
		e := open(t, from.m, o)
		if s, err := e.Stats(); err != nil || s.FilterSource != from.source {
			t.Errorf("filters from %q, want %q: %v", s.FilterSource, from.source, err)
		}
		want(e, from.source)
	}
}

func TestWeeksOfScopesThatAreLeftToLaterRunsAreReported(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20, ScopeRetention: map[string]int{"mail": 1, "audit": 3}})
	for week := -15; week <= 0; week++ {
		mustExpect(t, e, []engine.Event{named("a", "mail", "t", week), named("a", "audit", "t", week)}, engine.Claimed)
	}
	for _, behind := range []int{12, 10} { // of the 14 expired weeks of mail
		if r, err := e.Retention().DropExpired(ctx); err != nil || r.Behind != behind {
			t.Errorf("%+v, %v; want %d weeks to be left", r, err, behind)
		}
	}
	if r, err := e.Retention().DropAllExpired(ctx); err != nil || r.Behind != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestHoldsKeepTheWeeksOfScopesToo(t *testing.T) {
	e, _, _ := openAt(t, short(nil))
	events := inWeeks(-4, 0, 4)
	mustExpect(t, e, events, engine.Claimed)
	if err := e.SetHold(ctx, "lag", weeksLater(-3)); err != nil {
		t.Fatal(err)
	}
	r, err := e.Retention().DropExpired(ctx)
	if err != nil || r.Scopes["mail"] != weekOf(t, weeksLater(-3)) || r.HeldBy != "lag" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := wantOfScopes(t, e, events, weekOf(t, weeksLater(-3))); err != nil {
		t.Error(err)
	}
}

func TestTransactionThatClaimedInADroppedWeekOfItsScopeFailsWhole(t *testing.T) {
	e, _, _ := openAt(t, short(nil))
	mustExpect(t, e, inWeeks(-1, -1, 2), engine.Claimed)
	ev := at("a", weeksLater(-3))
	ev.Scope = "mail"
	err := e.Update(ctx, func(tx *engine.Tx) error {
		if res, err := tx.TryClaim(ev); err != nil || res.Verdict != engine.Claimed {
			t.Errorf("%v, %v", res, err)
		}
		_, err := e.Retention().DropExpired(ctx)
		return errors.Join(err, tx.Put([]byte("k"), []byte("v")))
	})
	if !errors.Is(err, engine.ErrWeekDropped) {
		t.Errorf("Update: %v", err)
	}
	mustExpect(t, e, []engine.Event{ev}, engine.TooOld)
}

func TestScopeRetentionThatCannotBeKeptIsRejected(t *testing.T) {
	for name, o := range map[string]engine.Options{
		"longer than the engine's": {RetentionWeeks: 4, ScopeRetention: map[string]int{"mail": 5}},
		"none":                     {ScopeRetention: map[string]int{"mail": 0}},
		"a blank scope":            {ScopeRetention: map[string]int{" ": 1}},
	} {
		if _, err := engine.Open(storetest.NewMem(storage.Identity{}), o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	e, _, _ := openAt(t, short(nil))
	ev := windowed("a", 3*7*24*time.Hour)
	ev.Scope = "mail"
	if _, err := e.TryClaim(ctx, ev); !errors.As(err, new(*engine.EventError)) {
		t.Errorf("a window that is longer than its scope's retention: %v", err)
	}
}

// One scope too many is rejected at Open; if a mark is missing for it, the other weeks expire all
// the same.
func TestMoreScopesThanMayHaveAShorterRetention(t *testing.T) {
	scopes := make(map[string]int, limits.ScopeRetentions+1)
	for i := range limits.ScopeRetentions {
		scopes[fmt.Sprint("scope-", i)] = 2
	}
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4, ScopeRetention: scopes})
	old, kept := named("old", "scope-7", "t", -3), named("old", "billing", "t", -3)
	mustExpect(t, e, []engine.Event{old, kept, named("recent", "billing", "t", -1)}, engine.Claimed)
	r, err := e.Retention().DropExpired(ctx)
	if err != nil || len(r.Scopes) != limits.ScopeRetentions {
		t.Fatal(len(r.Scopes), err)
	}
	mustExpect(t, e, []engine.Event{old}, engine.TooOld)
	plan := planned(t, e, "billing")
	if _, err := e.Retention().DropScope(ctx, plan); !errors.Is(err, engine.ErrLimit) {
		t.Errorf("the drop of a further scope: %v", err)
	}
	mustExpect(t, e, []engine.Event{kept}, engine.Duplicate)

	scopes["billing"] = 2
	o := engine.Options{RetentionWeeks: 4, ScopeRetention: scopes, Clock: c.now, ExpectedPerWeek: 1000}
	if _, err := engine.Open(storetest.NewMem(storage.Identity{}), o); err == nil || !strings.Contains(err.Error(), "65537") {
		t.Errorf("the retention of a further scope: %v", err)
	}
	delete(scopes, "scope-9") // which has a mark
	e = open(t, m.CrashClone(0), o)
	veryOld := named("x", "other", "t", -4)
	mustExpect(t, e, []engine.Event{veryOld}, engine.Claimed)
	c.set(weeksLater(1))
	if _, err := e.Retention().DropExpired(ctx); !errors.Is(err, engine.ErrLimit) {
		t.Errorf("the retention of a further scope: %v", err)
	}
	wantOldest(t, e, -3)
	mustExpect(t, e, []engine.Event{kept}, engine.Duplicate)
	mustExpect(t, e, []engine.Event{old, veryOld, named("x", "scope-7", "t", -2)}, engine.TooOld)

	c.set(weeksLater(4))
	if _, err := e.Retention().DropWeek(ctx, weekOf(t, weeksLater(-3))); err != nil { // a drop without the scopes' retention
		t.Fatal(err)
	}
	if _, err := e.Retention().DropScope(ctx, planned(t, e, "scope-7")); err != nil { // it has a mark already
		t.Error(err)
	}
}

// With KeepAll, the mark of a dropped scope remains until a retention has dropped the weeks before
// it.
func TestMarksOfDroppedScopesWithKeepAll(t *testing.T) {
	keepAll := engine.Options{RetentionWeeks: engine.KeepAll}
	e, m, c := openAt(t, keepAll)
	mustExpect(t, e, inWeeks(-2, 0, 10), engine.Claimed)
	if _, err := e.Retention().DropScope(ctx, planned(t, e, "mail")); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		o      engine.Options
		marked bool
	}{{keepAll, true}, {engine.Options{RetentionWeeks: 4}, false}, {keepAll, false}} {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		c.set(weeksLater(5))
		step.o.Clock = c.now
		m = reopened(t, m)
		e = open(t, m, step.o)
		if _, err := e.Retention().DropAllExpired(ctx); err != nil {
			t.Fatal(err)
		}
		if _, found, err := m.State([]byte("fmail")); err != nil || found != step.marked {
			t.Errorf("%+v: the mark exists %v, %v", step, found, err)
		}
		late := named("w0-1", "mail", "t", 0)
		mustExpect(t, e, []engine.Event{late}, engine.TooOld)
	}
	mustExpect(t, e, []engine.Event{named("new", "mail", "t", 5)}, engine.Claimed)
}
