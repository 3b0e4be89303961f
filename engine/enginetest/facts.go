package enginetest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A claimKey identifies an event in the model.
type claimKey struct {
	scope string
	week  weekbucket.Week
	id    string
}

func (k claimKey) String() string { return fmt.Sprintf("%q %v %q", k.scope, k.week, k.id) }

// facts has the durable state of the model.
type facts struct {
	claims  map[claimKey]engine.ClaimRecord
	host    map[string]string
	offsets map[int32]int64
	holds   map[string]weekbucket.Week
	oldest  weekbucket.Week
	floors  map[string]weekbucket.Week // oldest weeks of scopes
	dropped bool                       // a drop has raised oldest
}

func (f *facts) clone() *facts {
	return &facts{maps.Clone(f.claims), maps.Clone(f.host), maps.Clone(f.offsets), maps.Clone(f.holds), f.oldest, maps.Clone(f.floors), f.dropped}
}

// oldestOf returns the oldest retained week of a scope.
func (f *facts) oldestOf(scope string) weekbucket.Week {
	return max(f.oldest, f.floors[scope])
}

// lowestHold returns the first held week, or weekbucket.Max if no week is held.
func (f *facts) lowestHold() weekbucket.Week {
	low := weekbucket.Max
	for _, w := range f.holds {
		low = min(low, w)
	}
	return low
}

func (f *facts) raise(to weekbucket.Week) {
	f.dropped = f.dropped || to > f.oldest
	f.oldest = max(f.oldest, to)
	f.removeUnkept()
}

func (f *facts) raiseScope(scope string, to weekbucket.Week) {
	if to > f.oldestOf(scope) {
		f.floors[scope] = to
	}
	f.removeUnkept()
}

func (f *facts) removeUnkept() {
	maps.DeleteFunc(f.claims, func(k claimKey, _ engine.ClaimRecord) bool { return k.week < f.oldestOf(k.scope) })
}

// planOf returns the plan for the drop of a scope, without estimates.
func (f *facts) planOf(scope string, holds []string) engine.ScopeDropPlan {
	plan := engine.ScopeDropPlan{Scope: scope, Oldest: f.oldestOf(scope)}
	claims := map[weekbucket.Week]uint64{}
	for k := range f.claims {
		if k.scope == scope {
			claims[k.week]++
		}
	}
	for _, week := range slices.Sorted(maps.Keys(claims)) {
		plan.Weeks = append(plan.Weeks, engine.ScopeInfo{Week: week, Claims: claims[week]})
		plan.Oldest = week + 1
	}
	for _, name := range holds {
		if week, there := f.holds[name]; there {
			plan.Holds = append(plan.Holds, engine.Hold{Name: name, At: week.Start()})
		}
	}
	return plan
}
