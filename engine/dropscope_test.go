package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

func planned(t testing.TB, e *engine.Engine, scope string, holds ...string) engine.ScopeDropPlan {
	t.Helper()
	plan, err := e.Retention().PlanScopeDrop(ctx, scope, holds...)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// wantAfterDrop checks that the events of mail are TooOld, and all others duplicates.
func wantAfterDrop(t testing.TB, e *engine.Engine, events []engine.Event) {
	t.Helper()
	for _, ev := range events {
		want := engine.Duplicate
		if ev.Scope == "mail" {
			want = engine.TooOld
		}
		mustExpect(t, e, []engine.Event{ev}, want)
	}
}

func TestDroppedScopeReleasesItsHoldsAndItsName(t *testing.T) {
	e, m, c := openAt(t, engine.Options{RetentionWeeks: 4})
	events := inWeeks(-3, 0, 10)
	mustExpect(t, e, events, engine.Claimed)
	for _, name := range []string{"kafka/mail/0", "kafka/mail/1", "kafka/billing/0"} {
		if err := e.SetHold(ctx, name, weeksLater(-3)); err != nil {
			t.Fatal(err)
		}
	}
	names := stats(t, e).Names
	plan := planned(t, e, "mail", "kafka/mail/1", "kafka/mail/0")
	if len(plan.Weeks) != 4 || plan.Weeks[0].Week != weekOf(t, weeksLater(-3)) || plan.Weeks[0].Claims != 5 || plan.Weeks[0].Bytes == 0 ||
		plan.Oldest != weekOf(t, weeksLater(1)) || len(plan.Holds) != 2 || plan.Holds[0].Name != "kafka/mail/0" || !plan.FreesName {
		t.Fatalf("%+v", plan)
	}
	mustExpect(t, e, events, engine.Duplicate) // a plan changes nothing
	sent, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var got engine.ScopeDropPlan
	if err := json.Unmarshal(sent, &got); err != nil {
		t.Fatal(err)
	}
	r, err := e.Retention().DropScope(ctx, got)
	wantDrop(t, r, err, 0, 4, "")
	if want := map[string]weekbucket.Week{"mail": plan.Oldest}; !maps.Equal(r.Scopes, want) || r.Oldest != e.Retention().OldestWeek() {
		t.Errorf("%+v", r)
	}
	check := func(e *engine.Engine) {
		t.Helper()
		wantAfterDrop(t, e, events)
		if holds := e.Holds(); len(holds) != 1 || holds[0].Name != "kafka/billing/0" {
			t.Error(holds)
		}
		if got := weeksOf(t, e, "mail"); len(got) != 0 {
			t.Error(got)
		}
		if n := stats(t, e).Names; n != names-1 {
			t.Errorf("%d names of %d are left", n, names)
		}
		verifyClean(t, e, 20)
	}
	check(e)
	if got := bucketsOf(t, m); slices.ContainsFunc(got, func(b storage.Bucket) bool { return b.Scope == "mail" }) {
		t.Error(got)
	}
	reclaimed(t, e)
	check(open(t, m.CrashClone(0), engine.Options{RetentionWeeks: 4, Clock: c.now, ExpectedPerWeek: 1000}))

	c.set(weeksLater(1)) // the scope is used again
	late, now := at("late", weeksLater(0)), at("now", weeksLater(1))
	late.Scope, now.Scope = "mail", "mail"
	mustExpect(t, e, []engine.Event{late}, engine.TooOld)
	mustExpect(t, e, []engine.Event{now}, engine.Claimed)
	if _, err := e.Retention().DropScope(ctx, plan); err != nil { // it was decided already
		t.Error(err)
	}
	mustExpect(t, e, []engine.Event{now}, engine.Duplicate)
}

func TestOutdatedPlanDropsNothing(t *testing.T) {
	of := func(scope string, week int) engine.Event {
		ev := at("new", weeksLater(week))
		ev.Scope = scope
		return ev
	}
	for name, c := range map[string]struct {
		do       func(e *engine.Engine) error
		outdated bool
	}{
		"nothing happens":      {func(*engine.Engine) error { return nil }, false},
		"another scope claims": {func(e *engine.Engine) error { return expect(e, []engine.Event{of("billing", 0)}, engine.Claimed) }, false},
		"it claims":            {func(e *engine.Engine) error { return expect(e, []engine.Event{of("mail", 0)}, engine.Claimed) }, true},
		"it claims in a week":  {func(e *engine.Engine) error { return expect(e, []engine.Event{of("mail", -3)}, engine.Claimed) }, true},
		"a claim is forgotten": {func(e *engine.Engine) error {
			_, err := e.Admin().Forget(ctx, "mail", []byte("w0-1"), noon)
			return err
		}, true},
		"a hold is moved":       {func(e *engine.Engine) error { return e.SetHold(ctx, "h", weeksLater(-1)) }, true},
		"a hold is released":    {func(e *engine.Engine) error { return e.ReleaseHold(ctx, "h") }, true},
		"another hold is moved": {func(e *engine.Engine) error { return e.SetHold(ctx, "i", weeksLater(-1)) }, false},
		"its first week is dropped": {func(e *engine.Engine) error {
			_, err := e.Retention().DropWeek(ctx, weekOf(t, weeksLater(-2)))
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, _ := openAt(t, engine.Options{RetentionWeeks: 4})
			events := inWeeks(-2, 0, 10)
			mustExpect(t, e, events, engine.Claimed)
			if err := e.SetHold(ctx, "h", noon); err != nil {
				t.Fatal(err)
			}
			plan := planned(t, e, "mail", "h")
			if err := c.do(e); err != nil {
				t.Fatal(err)
			}
			holds := e.Holds()
			_, err := e.Retention().DropScope(ctx, plan)
			if !c.outdated {
				if err != nil || slices.ContainsFunc(e.Holds(), func(h engine.Hold) bool { return h.Name == "h" }) {
					t.Error(err, e.Holds())
				}
				wantAfterDrop(t, e, events)
				return
			}
			if !errors.Is(err, engine.ErrPlanOutdated) {
				t.Error(err)
			}
			if now := e.Holds(); !slices.Equal(now, holds) {
				t.Errorf("holds %v, before %v", now, holds)
			}
			mustExpect(t, e, inWeeks(-1, -1, 10), engine.Duplicate)
		})
	}
}

func TestInvalidPlans(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	for _, c := range []struct{ scope, hold string }{{"", "h"}, {strings.Repeat("x", 256), "h"}, {"mail", "nobody"}} {
		if err := e.SetHold(ctx, "h", noon); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Retention().PlanScopeDrop(ctx, c.scope, c.hold); !errors.As(err, new(*engine.ArgumentError)) {
			t.Errorf("%.10q, hold %q: %v", c.scope, c.hold, err)
		}
	}
	plan := planned(t, e, "nobody")
	if len(plan.Weeks) != 0 || plan.Oldest != e.Retention().OldestWeek() || plan.FreesName {
		t.Errorf("%+v", plan)
	}
	if r, err := e.Retention().DropScope(ctx, plan); err != nil || len(r.Scopes) != 0 {
		t.Error(r, err)
	}
}

// A plan that was decided does not release a hold that was placed later.
func TestHoldThatIsPlacedAfterTheDropRemains(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	mustExpect(t, e, []engine.Event{named("x", "mail", "t", 0)}, engine.Claimed)
	if err := e.SetHold(ctx, "h", noon); err != nil {
		t.Fatal(err)
	}
	plan := planned(t, e, "mail", "h")
	if _, err := e.Retention().DropScope(ctx, plan); err != nil {
		t.Fatal(err)
	}
	if err := e.SetHold(ctx, "h", noon); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Retention().DropScope(ctx, plan); !errors.Is(err, engine.ErrPlanOutdated) || len(e.Holds()) != 1 {
		t.Errorf("%v, holds %v", err, e.Holds())
	}
}

// A topic may have the name of a scope, in any order and week: the name remains as long as the
// topic needs it.
func TestNameOfADroppedScopeThatIsATopicToo(t *testing.T) {
	for name, c := range map[string]struct {
		events []engine.Event
		frees  bool
	}{
		"scope first":           {[]engine.Event{named("a", "mail", "t", 0), named("b", "billing", "mail", 0)}, false},
		"topic first":           {[]engine.Event{named("b", "billing", "mail", 0), named("a", "mail", "t", 0)}, false},
		"its own topic":         {[]engine.Event{named("a", "mail", "mail", 0)}, false},
		"another week":          {[]engine.Event{named("a", "mail", "t", 0), named("b", "billing", "mail", -1)}, false},
		"only what was dropped": {[]engine.Event{named("b", "billing", "mail", -3), named("a", "mail", "t", 0)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, m, clk := openAt(t, engine.Options{RetentionWeeks: 4})
			mustExpect(t, e, c.events, engine.Claimed)
			if name == "only what was dropped" {
				if _, err := e.Retention().DropWeek(ctx, weekOf(t, weeksLater(-3))); err != nil {
					t.Fatal(err)
				}
			}
			names := stats(t, e).Names
			for i, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{Clock: clk.now})} {
				plan := planned(t, e, "mail")
				if plan.FreesName != c.frees {
					t.Errorf("engine %d: %+v", i, plan)
				}
				if _, err := e.Retention().DropScope(ctx, plan); err != nil {
					t.Fatal(err)
				}
				if n := stats(t, e).Names; (n == names-1) != c.frees || n < names-1 {
					t.Errorf("engine %d: %d of %d names are left", i, n, names)
				}
				for _, ev := range c.events {
					rec, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time)
					kept := ev.Scope != "mail" && !c.frees
					if err != nil || found != kept || kept && rec.Origin.Topic != ev.Origin.Topic {
						t.Errorf("engine %d: %v: %+v %v %v", i, ev.Scope, rec, found, err)
					}
				}
			}
		})
	}
}

func named(id, scope, topic string, week int) engine.Event {
	ev := at(id, weeksLater(week))
	ev.Scope, ev.Origin.Topic = scope, topic
	return ev
}

// The number of a dropped scope may be assigned again in a retained week: earlier entries of the
// journal and snapshots do not belong to the new scope.
func TestNumberOfADroppedScopeIsAssignedAgain(t *testing.T) {
	for name, every := range map[string]uint64{"from the journal": 1 << 20, "from a snapshot before": 25, "from a snapshot after": 2} {
		t.Run(name, func(t *testing.T) {
			c := &clock{t: noon}
			o := engine.Options{ExpectedPerWeek: 1000, Clock: c.now}.WithSnapshotEvery(every)
			m := storetest.NewMem(storage.Identity{})
			e := open(t, m, o)
			for pod := range 8 {
				for i := range 10 {
					mustExpect(t, e, []engine.Event{named(fmt.Sprint(i), fmt.Sprint("pod-", pod), "t", 0)}, engine.Claimed)
				}
				if _, err := e.Retention().DropScope(ctx, planned(t, e, fmt.Sprint("pod-", pod))); err != nil {
					t.Fatal(err)
				}
				mustExpect(t, e, []engine.Event{named("x", fmt.Sprint("next-", pod), "t", 0)}, engine.Claimed)
			}
			if n := stats(t, e).Names; n != 9 {
				t.Errorf("%d names", n)
			}
			for i, e := range []*engine.Engine{e, open(t, m.CrashClone(0), o)} {
				infos, err := e.Weeks(ctx)
				if err != nil || len(infos) != 1 || infos[0].Claims != 8 || len(infos[0].Scopes) != 8 {
					t.Errorf("engine %d: %+v, %v", i, infos, err)
				}
				verifyClean(t, e, 8)
			}
		})
	}
}

func TestTransactionAndLeaseInADroppedScopeFail(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	of := func(id string) engine.Event { return named(id, "mail", "t", 0) }
	mustExpect(t, e, []engine.Event{of("old")}, engine.Claimed)
	leased := of("leased")
	leased.Lease = time.Hour
	res, err := e.TryClaim(ctx, leased)
	if err != nil || res.Lease == nil {
		t.Fatal(res, err)
	}
	err = e.Update(ctx, func(tx *engine.Tx) error {
		res, err := tx.TryClaim(of("new"))
		wantVerdict(t, res, engine.Claimed)
		_, dropped := e.Retention().DropScope(ctx, planned(t, e, "mail"))
		return errors.Join(err, dropped, tx.Put([]byte("k"), []byte("v")))
	})
	if !errors.Is(err, engine.ErrWeekDropped) {
		t.Error("the transaction:", err)
	}
	if err := e.Finish(ctx, res.Lease, nil); !errors.Is(err, engine.ErrLeaseLost) {
		t.Error("the lease:", err)
	}
	if _, err := e.Renew(ctx, res.Lease, time.Hour); !errors.Is(err, engine.ErrLeaseLost) {
		t.Error("the lease:", err)
	}
	mustExpect(t, e, []engine.Event{of("old"), of("new"), of("leased")}, engine.TooOld)
}

// Events without a time have the time of their arrival: none is claimed in the dropped weeks.
func TestWindowsInADroppedScope(t *testing.T) {
	e, _, c := openAt(t, engine.Options{})
	ev := windowed("a", 10*24*time.Hour)
	ev.Scope, ev.Time = "mail", time.Time{}
	mustExpect(t, e, []engine.Event{ev}, engine.Claimed)
	if _, err := e.Retention().DropScope(ctx, planned(t, e, "mail")); err != nil {
		t.Fatal(err)
	}
	mustExpect(t, e, []engine.Event{ev}, engine.TooOld)
	c.set(weeksLater(1))
	mustExpect(t, e, []engine.Event{ev}, engine.Claimed)
	mustExpect(t, e, []engine.Event{ev}, engine.Duplicate)
}

func TestScopesOfPodsAreDroppedOneByOne(t *testing.T) {
	e, m, c := openAt(t, engine.Options{ExpectedPerWeek: 1 << 10})
	var kept []engine.Event
	for pod := range 300 {
		ev := named("id", fmt.Sprint("pod-", pod), "t", 0)
		mustExpect(t, e, []engine.Event{ev}, engine.Claimed)
		if pod >= 5 {
			if _, err := e.Retention().DropScope(ctx, planned(t, e, fmt.Sprint("pod-", pod-5))); err != nil {
				t.Fatal(err)
			}
		}
		if kept = append(kept, ev); len(kept) > 5 {
			kept = kept[1:]
		}
	}
	for _, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{ExpectedPerWeek: 1 << 10, Clock: c.now})} {
		if n := stats(t, e).Names; n != 6 {
			t.Errorf("%d names are kept", n)
		}
		mustExpect(t, e, kept, engine.Duplicate)
		verifyClean(t, e, 5)
	}
}

// While a scan is still counting the claims of a scope, its number is not assigned to another one.
func TestNumberOfAScopeIsKeptWhileItsClaimsAreCounted(t *testing.T) {
	c := &clock{t: noon}
	o := engine.Options{RetentionWeeks: 4, ScopeRetention: map[string]int{"mail": 1}, MaxWeeksPerRun: 9, ExpectedPerWeek: 1000, Clock: c.now}
	m := storetest.NewMem(storage.Identity{})
	for week := -3; week <= -2; week++ { // a snapshot each, so that the journal is trimmed
		e := open(t, m, o)
		mustExpect(t, e, inWeeks(week, week, 20), engine.Claimed)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		m = reopened(t, m)
	}
	setSidecar(t, m, "screen-0", nil)
	setSidecar(t, m, "screen-1", nil)
	counting, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release() // the engine is closed after that
	slow := &tampered{Mem: m}
	slow.scan = func(ctx context.Context, span storage.Span, started func(), fn func(key, record []byte) error) error {
		err := m.Scan(ctx, span, started, fn)
		close(counting)
		<-goOn
		return err
	}
	e := open(t, slow, o)
	if source := stats(t, e).FilterSource; source != engine.FromScan {
		t.Fatal(source)
	}
	receive(t, counting)
	r, err := e.Retention().DropAllExpired(ctx)
	if err != nil || r.Scopes["mail"] != weekOf(t, weeksLater(-1)) {
		t.Fatal(r, err)
	}
	mustExpect(t, e, []engine.Event{named("x", "next", "t", -2)}, engine.Claimed)
	release()
	awaitTrust(t, e)
	slow.scan = nil // the scan that has used it has ended
	infos, err := e.Weeks(ctx)
	if err != nil || len(infos) != 2 || infos[1].Claims != 11 {
		t.Errorf("%+v, %v", infos, err)
	}
	verifyClean(t, e, 21)
	if _, err := e.Retention().DropExpired(ctx); err != nil { // now it is freed
		t.Fatal(err)
	}
	if got := stats(t, e).Names; got != 4 { // billing, next and two topics
		t.Errorf("%d names are kept", got)
	}
}

// A plan that PlanScopeDrop has not made, or has rejected, changes nothing.
func TestIncompletePlanIsRejected(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev := named("x", "a", "t", 0)
	mustExpect(t, e, []engine.Event{ev}, engine.Claimed)
	plan := planned(t, e, "a")
	plan.Oldest = 0
	if _, err := e.Retention().DropScope(ctx, plan); !errors.Is(err, engine.ErrPlanOutdated) {
		t.Errorf("a plan without its oldest week: %v", err)
	}
	if _, err := e.Retention().DropScope(ctx, engine.ScopeDropPlan{Scope: "a"}); !errors.Is(err, engine.ErrPlanOutdated) {
		t.Errorf("a plan of nothing: %v", err)
	}
	next := named("x", "a", "t", -2)
	mustExpect(t, e, []engine.Event{next}, engine.Claimed)
	plan = planned(t, e, "a")
	plan.Weeks[0].Week++
	if _, err := e.Retention().DropScope(ctx, plan); !errors.Is(err, engine.ErrPlanOutdated) {
		t.Errorf("a plan with another week of as many claims: %v", err)
	}
	mustExpect(t, e, []engine.Event{ev, next}, engine.Duplicate)

	last := time.Date(9999, 12, 31, 12, 0, 0, 0, time.UTC)
	opt := engine.Options{Clock: func() time.Time { return last }}
	e, m := openMem(t, opt)
	ev.Time = last
	mustExpect(t, e, []engine.Event{ev}, engine.Claimed)
	plan, err := e.Retention().PlanScopeDrop(ctx, "a")
	if !errors.As(err, new(*engine.ArgumentError)) {
		t.Errorf("a plan of the last possible week: %v", err)
	}
	if _, err := e.Retention().DropScope(ctx, plan); !errors.Is(err, engine.ErrPlanOutdated) {
		t.Errorf("a plan that was rejected: %v", err)
	}
	open(t, m.CrashClone(0), opt)
}
