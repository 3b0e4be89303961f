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

// modelRetentions are the scopes with a retention of their own.
var modelRetentions = []map[string]int{nil, {"ab": 2}, {"ab": 1, "a\x00": 3}}

// oldestOf is the oldest week kept of a scope.
func (m *model) oldestOf(scope string) weekbucket.Week {
	return max(m.told.oldest, m.told.floors[scope])
}

// kept is the window, or the longest one that a scope may have.
func (m *model) kept(scope string, window time.Duration) time.Duration {
	if weeks, ok := m.retention[scope]; ok {
		window = min(window, time.Duration(weeks)*7*24*time.Hour)
	}
	return window
}

func (m *model) raise(to weekbucket.Week) {
	m.told.oldest = max(m.told.oldest, to)
	m.removeUnkept()
}

func (m *model) raiseScope(scope string, to weekbucket.Week) {
	m.told.floors[scope] = max(m.told.floors[scope], to)
	m.removeUnkept()
}

func (m *model) removeUnkept() {
	maps.DeleteFunc(m.told.claims, func(k claimKey, _ engine.Record) bool { return k.week < m.oldestOf(k.scope) })
}

// expiredUntil returns the week before which a run drops: one of the two, as the second counts
// weeks from the first one with claims, which the engine knows once its filters are back.
func (m *model) expiredUntil(oldest weekbucket.Week, retention int, of func(claimKey) bool) (low, high weekbucket.Week) {
	kept, first := m.week()-weekbucket.Week(retention), weekbucket.Max
	for k := range m.told.claims {
		if of(k) {
			first = min(first, k.week)
		}
	}
	from := oldest
	if first != weekbucket.Max {
		from = max(from, min(first, kept))
	}
	until := func(from weekbucket.Week) weekbucket.Week {
		return max(oldest, min(kept, from+engine.DefaultMaxWeeksPerRun, m.lowestHold()))
	}
	return until(oldest), until(from)
}

func (m *model) dropExpired(*rapid.T) {
	type bounds struct{ low, high weekbucket.Week }
	scopes := map[string]bounds{}
	for scope, weeks := range m.retention {
		low, high := m.expiredUntil(m.oldestOf(scope), weeks, func(k claimKey) bool { return k.scope == scope })
		scopes[scope] = bounds{low, high}
	}
	low, high := m.expiredUntil(m.told.oldest, engine.DefaultRetentionWeeks, func(claimKey) bool { return true })
	r, err := m.e.DropExpired(context.Background())
	if err != nil || r.Oldest != low && r.Oldest != high || m.e.OldestWeek() != r.Oldest {
		m.Fatalf("dropping what is expired: %+v, %v; want %v or %v", r, err, low, high)
	}
	for scope, b := range scopes {
		week, raised := r.Scopes[scope]
		if !raised {
			week = m.oldestOf(scope)
		}
		if week != b.low && week != b.high || raised && week == m.oldestOf(scope) {
			m.Fatalf("dropping what is expired: %+v; want of %q %v or %v", r, scope, b.low, b.high)
		}
		m.raiseScope(scope, week)
	}
	if len(r.Scopes) > len(scopes) {
		m.Fatalf("dropping what is expired: %+v; only %v have a retention of their own", r, m.retention)
	}
	m.raise(r.Oldest)
}

// planOf is the plan for the drop of a scope, without estimates.
func (m *model) planOf(scope string, holds []string) engine.ScopeDropPlan {
	plan := engine.ScopeDropPlan{Scope: scope, Oldest: m.oldestOf(scope)}
	claims := map[weekbucket.Week]uint64{}
	for k := range m.told.claims {
		if k.scope == scope {
			claims[k.week]++
		}
	}
	for _, week := range slices.Sorted(maps.Keys(claims)) {
		plan.Weeks = append(plan.Weeks, engine.ScopeWeek{Week: week, Claims: claims[week]})
		plan.Oldest = week + 1
	}
	for _, name := range holds {
		if week, there := m.told.holds[name]; there {
			plan.Holds = append(plan.Holds, engine.Hold{Name: name, At: week.Start()})
		}
	}
	return plan
}

func samePlan(a, b engine.ScopeDropPlan) bool {
	return a.Scope == b.Scope && a.Oldest == b.Oldest &&
		slices.EqualFunc(a.Weeks, b.Weeks, func(a, b engine.ScopeWeek) bool { return a.Week == b.Week && a.Claims == b.Claims }) &&
		slices.EqualFunc(a.Holds, b.Holds, func(a, b engine.Hold) bool { return a.Name == b.Name && a.At.Equal(b.At) })
}

// dropScope plans the drop of a scope, may do something else, and drops it.
func (m *model) dropScope(t *rapid.T) {
	scope := rapid.SampledFrom([]string{"a", "ab", "a\x00"}).Draw(t, "scope")
	var holds []string
	for _, name := range slices.Sorted(maps.Keys(m.told.holds)) {
		if rapid.Bool().Draw(t, "with its hold") {
			holds = append(holds, name)
		}
	}
	var plan engine.ScopeDropPlan
	err := rebuilt(func() (err error) {
		plan, err = m.e.PlanScopeDrop(context.Background(), scope, holds...)
		return err
	})
	if want := m.planOf(scope, holds); err != nil || !samePlan(plan, want) {
		m.Fatalf("planning: %+v, %v; want %+v", plan, err, want)
	}
	if rapid.IntRange(0, 2).Draw(t, "between") == 0 {
		rapid.SampledFrom([]func(*rapid.T){m.claim, m.forget, m.hold, m.dropExpired}).Draw(t, "do")(t)
	}
	now := m.planOf(scope, holds)
	decided := len(plan.Weeks)+len(plan.Holds) > 0 && plan.Oldest <= m.oldestOf(scope) && len(now.Holds) == 0
	var want error
	if !decided && !samePlan(plan, now) {
		want = engine.ErrPlanOutdated
	}
	drop := func() error { _, err := m.e.DropScope(context.Background(), plan); return err }
	if err := rebuilt(drop); !errors.Is(err, want) || want == nil && err != nil {
		m.Fatalf("dropping %+v: %v, want %v; there is %+v", plan, err, want, now)
	}
	if want != nil {
		return
	}
	if !decided {
		for _, hold := range plan.Holds {
			delete(m.told.holds, hold.Name)
		}
		m.raiseScope(scope, plan.Oldest)
	}
	if err := rebuilt(drop); err != nil {
		m.Fatalf("dropping %+v again: %v", plan, err)
	}
}

// rebuilt makes a call again until the filters are back.
func rebuilt(call func() error) error {
	err := call()
	for errors.Is(err, engine.ErrRebuilding) {
		time.Sleep(time.Millisecond)
		err = call()
	}
	return err
}
