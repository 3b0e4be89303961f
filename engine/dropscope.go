package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A ScopeWeek is what a week holds of one scope. Bytes are an estimate of the space on disk.
type ScopeWeek struct {
	Week   weekbucket.Week
	Claims uint64
	Bytes  uint64
}

// A ScopeDropPlan says what DropScope drops. It has no hidden part: it may be shown, stored and
// sent.
type ScopeDropPlan struct {
	Scope string
	// Weeks are the kept weeks that hold claims of the scope, oldest first. All of them go.
	Weeks []ScopeWeek
	// Oldest is the oldest week kept of the scope from then on, the one after the last of Weeks.
	// Events of the scope in earlier weeks are TooOld for good, those of later ones are claimed.
	Oldest weekbucket.Week
	// Holds are released.
	Holds []Hold
	// FreesName says that the scope's name is given back (MaxNames). It is not if a topic of a kept
	// week has the same name; then, and if claims of the scope were made by a build that did not
	// note this, it is given back with these weeks.
	FreesName bool
}

// PlanScopeDrop says what DropScope would drop for a scope that is used no more, such as that of an
// instance that is gone: all of its claims, and the given holds, by their names, as a hold belongs
// to no scope (kafkaadapter.HoldNames lists those of a consumer group). It changes nothing. A hold
// that is not there is a KeyError. While the counts are being rebuilt it is ErrRebuilding.
func (e *Engine) PlanScopeDrop(ctx context.Context, scope string, holds ...string) (ScopeDropPlan, error) {
	plan := ScopeDropPlan{Scope: scope}
	if strings.TrimSpace(scope) == "" || len(scope) > MaxScopeBytes {
		return plan, &KeyError{"scope", fmt.Sprintf("has %d bytes or is blank: give 1 to %d", len(scope), MaxScopeBytes)}
	}
	err := e.control(ctx, func(*group) error {
		if !e.screen.trusted.Load() {
			return ErrRebuilding
		}
		plan.Weeks = e.weeksOfScope(scope)
		plan.Oldest = e.decidedOldest(scope)
		if n := len(plan.Weeks); n > 0 {
			plan.Oldest = plan.Weeks[n-1].Week + 1
		}
		plan.FreesName = !e.names.keeps(scope, plan.Oldest)
		return nil
	})
	if err == nil && plan.Oldest > weekbucket.Max {
		err = &KeyError{"scope", fmt.Sprintf("%q has claims in %s, the last week there is", scope, weekbucket.Max)}
	}
	if err == nil {
		plan.Holds, err = e.holds.named(holds)
	}
	if err == nil {
		err = e.sizes(&plan)
	}
	return plan, err
}

// sizes fills the estimates in.
func (e *Engine) sizes(plan *ScopeDropPlan) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	for i := range plan.Weeks {
		w := &plan.Weeks[i]
		bytes, err := e.store.BucketBytes(storage.Bucket{Scope: plan.Scope, Week: w.Week})
		if err != nil {
			return e.stop(err)
		}
		w.Bytes = bytes
	}
	return nil
}

// weeksOfScope returns the counts of a scope's weeks. Only the committer calls it.
func (e *Engine) weeksOfScope(scope string) (weeks []ScopeWeek) {
	number, known := e.names.number(scope)
	for ref, c := range e.screen.counts {
		if known && ref.scope == number && c.claims > 0 {
			weeks = append(weeks, ScopeWeek{Week: ref.week, Claims: c.claims})
		}
	}
	slices.SortFunc(weeks, func(a, b ScopeWeek) int { return int(a.Week) - int(b.Week) })
	return weeks
}

// DropScope drops what the plan says, if that is still what is there: the same weeks with the same
// numbers of claims, and the same holds. Otherwise it changes nothing and returns ErrPlanOutdated.
// Holds that the plan does not name keep nothing of the scope. On return the claims are gone,
// durably, and the holds released; the disk space comes back behind (see Reclaimed).
//
// A crash leaves all of it undone, or decided: then opening the store goes on with it. Called again
// with a plan that was decided already, DropScope finishes it.
//
// A transaction that has claimed an event of the scope in these weeks and commits afterwards is
// ErrWeekDropped, and a Lease on such a claim is ErrLeaseLost.
func (e *Engine) DropScope(ctx context.Context, plan ScopeDropPlan) (DropReport, error) {
	e.drops.Lock()
	defer e.drops.Unlock()
	var report DropReport
	err := e.control(ctx, func(g *group) error {
		report.Oldest = e.decideOld
		done, err := e.checkPlan(&plan)
		if done || err != nil {
			return err
		}
		if plan.Oldest > e.decidedOldest(plan.Scope) {
			until := map[string]weekbucket.Week{plan.Scope: plan.Oldest}
			if err := e.raiseFloors(g, until, &report); err != nil {
				return err
			}
		}
		for _, hold := range plan.Holds {
			w := storage.StateWrite{Key: holdKey(hold.Name)}
			g.batch.State = append(g.batch.State, w)
			e.holds.noteWrite(w)
		}
		return nil
	})
	if err != nil {
		return report, err
	}
	return report, e.removeUnkept(ctx, &report)
}

// checkPlan reports whether the plan was decided already. Only the committer calls it.
func (e *Engine) checkPlan(plan *ScopeDropPlan) (done bool, err error) {
	outdated := func(format string, args ...any) (bool, error) {
		return false, fmt.Errorf("%w: "+format, append([]any{ErrPlanOutdated}, args...)...)
	}
	names := make([]string, len(plan.Holds))
	for i, hold := range plan.Holds {
		names[i] = hold.Name
	}
	there := e.holds.among(names)
	if plan.Oldest <= e.decidedOldest(plan.Scope) && len(there) == 0 && len(plan.Weeks)+len(plan.Holds) > 0 {
		return true, nil
	}
	if !e.screen.trusted.Load() {
		return false, ErrRebuilding
	}
	now, last := e.weeksOfScope(plan.Scope), e.decidedOldest(plan.Scope)
	same := slices.EqualFunc(now, plan.Weeks, func(a, b ScopeWeek) bool { return a.Week == b.Week && a.Claims == b.Claims })
	if len(now) > 0 {
		last = now[len(now)-1].Week + 1
	}
	switch {
	case !same || last != plan.Oldest:
		return outdated("scope %q has claims in %d weeks, which are not those of the plan", plan.Scope, len(now))
	case !slices.EqualFunc(there, plan.Holds, func(a, b Hold) bool { return a.Name == b.Name && a.At.Equal(b.At) }):
		return outdated("a hold was moved or released")
	}
	return false, nil
}
