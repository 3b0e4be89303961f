package enginetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

func (c *checker) hold(t *rapid.T) {
	name := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "hold")
	week := c.week() + weekbucket.Week(rapid.IntRange(0, 8).Draw(t, "week")) - 6
	var err error
	if rapid.IntRange(0, 2).Draw(t, "place") == 0 {
		err = c.e.SetHold(context.Background(), name, week.Start())
		c.told.holds[name] = week
	} else {
		err = c.e.ReleaseHold(context.Background(), name)
		delete(c.told.holds, name)
	}
	if err != nil {
		c.Fatalf("hold %q: %v", name, err)
	}
}

func (c *checker) dropWeek(t *rapid.T) {
	week := c.told.oldest + weekbucket.Week(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "week"))
	first := week
	for k := range c.told.claims {
		first = min(first, k.week)
	}
	some := slices.ContainsFunc(slices.Collect(maps.Keys(c.told.claims)), func(k claimKey) bool { return k.week == week })
	var want error
	switch {
	case week != c.told.oldest && (!some || first != week):
		want = engine.ErrNotOldestWeek
	case c.told.lowestHold() <= week:
		want = engine.ErrHeld
	}
	err := rebuilt(func() error { _, err := c.e.Retention().DropWeek(context.Background(), week); return err })
	if !errors.Is(err, want) || want == nil && err != nil {
		c.Fatalf("dropping %v: %v, want %v", week, err, want)
	}
	if err == nil {
		c.told.raise(week + 1)
	}
}

func (c *checker) dropExpired(*rapid.T) {
	scopes := map[string]weekbucket.Week{}
	for scope, weeks := range c.retention {
		scopes[scope] = c.expiredUntil(c.told.oldestOf(scope), weeks, func(k claimKey) bool { return k.scope == scope })
	}
	want := c.expiredUntil(c.told.oldest, defaultRetentionWeeks, func(claimKey) bool { return true })
	r, err := c.e.Retention().DropExpired(context.Background())
	if err != nil || r.Oldest != want || c.e.Retention().OldestWeek() != want {
		c.Fatalf("dropping what is expired: %+v, %v; want %v", r, err, want)
	}
	for scope, want := range scopes {
		week, raised := r.Scopes[scope]
		if !raised {
			week = c.told.oldestOf(scope)
		}
		if week != want || raised && week == c.told.oldestOf(scope) {
			c.Fatalf("dropping what is expired: %+v; want of %q %v", r, scope, want)
		}
		c.told.raiseScope(scope, week)
	}
	if len(r.Scopes) > len(scopes) {
		c.Fatalf("dropping what is expired: %+v; only %v have a retention of their own", r, c.retention)
	}
	c.told.raise(r.Oldest)
}

// dropScope plans the drop of a scope, may make another change, and drops it.
func (c *checker) dropScope(t *rapid.T) {
	scope := rapid.SampledFrom([]string{"a", "ab", "a\x00"}).Draw(t, "scope")
	var holds []string
	for _, name := range slices.Sorted(maps.Keys(c.told.holds)) {
		if rapid.Bool().Draw(t, "with its hold") {
			holds = append(holds, name)
		}
	}
	var plan engine.ScopeDropPlan
	err := rebuilt(func() (err error) {
		plan, err = c.e.Retention().PlanScopeDrop(context.Background(), scope, holds...)
		return err
	})
	if want := c.told.planOf(scope, holds); err != nil || !samePlan(plan, want) {
		c.Fatalf("planning: %+v, %v; want %+v", plan, err, want)
	}
	if rapid.IntRange(0, 2).Draw(t, "between") == 0 {
		rapid.SampledFrom([]func(*rapid.T){c.claim, c.forget, c.hold, c.dropExpired}).Draw(t, "do")(t)
	}
	now := c.told.planOf(scope, holds)
	decided := len(plan.Weeks)+len(plan.Holds) > 0 && plan.Oldest <= c.told.oldestOf(scope) && len(now.Holds) == 0
	var want error
	if !decided && !samePlan(plan, now) {
		want = engine.ErrPlanOutdated
	}
	drop := func() error { _, err := c.e.Retention().DropScope(context.Background(), plan); return err }
	if err := rebuilt(drop); !errors.Is(err, want) || want == nil && err != nil {
		c.Fatalf("dropping %+v: %v, want %v; there is %+v", plan, err, want, now)
	}
	if want != nil {
		return
	}
	if !decided {
		for _, hold := range plan.Holds {
			delete(c.told.holds, hold.Name)
		}
		c.told.raiseScope(scope, plan.Oldest)
	}
	if err := rebuilt(drop); err != nil {
		c.Fatalf("dropping %+v again: %v", plan, err)
	}
}

func samePlan(a, b engine.ScopeDropPlan) bool {
	return a.Scope == b.Scope && a.Oldest == b.Oldest &&
		slices.EqualFunc(a.Weeks, b.Weeks, func(a, b engine.ScopeInfo) bool { return a.Week == b.Week && a.Claims == b.Claims }) &&
		slices.EqualFunc(a.Holds, b.Holds, func(a, b engine.Hold) bool { return a.Name == b.Name && a.At.Equal(b.At) })
}

// rebuilt repeats a call until the filters are loaded.
func rebuilt(call func() error) error {
	err := call()
	for errors.Is(err, engine.ErrRebuilding) {
		time.Sleep(time.Millisecond)
		err = call()
	}
	return err
}
