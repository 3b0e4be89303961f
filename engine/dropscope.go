package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A ScopeDropPlan says what DropScope drops. All its fields are exported, so it can be shown,
// stored and sent.
type ScopeDropPlan struct {
	Scope string
	// Weeks are the retained weeks in which the scope has claims, oldest first. All of them are
	// dropped.
	Weeks []ScopeInfo
	// Oldest is the oldest retained week of the scope afterwards, the one after the last of Weeks.
	// Events of the scope in earlier weeks are TooOld permanently; later ones can be claimed.
	Oldest weekbucket.Week
	// Holds are the holds that are released.
	Holds []Hold
	// FreesName reports whether the drop frees the scope's name (limits.Names). It is false if no
	// claim has used the name. It is also false if a topic may have the same name in a retained
	// week, or if an old build made claims of the scope: the name is then freed with the last week
	// that uses it.
	FreesName bool
}

// PlanScopeDrop returns what DropScope would drop for an unused scope, such as that of an instance
// that no longer exists: all of its claims, and the holds with the given names. The names are
// needed because a hold belongs to no scope; kafkaadapter.HoldNames lists those of a consumer
// group. PlanScopeDrop changes nothing. It returns an ArgumentError for a hold that does not exist,
// and ErrRebuilding while the counts are being rebuilt.
func (t *Retention) PlanScopeDrop(ctx context.Context, scope string, holds ...string) (ScopeDropPlan, error) {
	plan := ScopeDropPlan{Scope: scope}
	if strings.TrimSpace(scope) == "" || len(scope) > limits.ScopeBytes {
		return plan, &ArgumentError{"scope", fmt.Sprintf("has %d bytes or is blank: give 1 to %d", len(scope), limits.ScopeBytes)}
	}
	err := t.queue.control(ctx, func(*group) error {
		if err := t.finder.incomplete(); err != nil {
			return err
		}
		number, known := t.finder.names.Number(scope)
		plan.Weeks = weeksOf(t.finder.filters, number, known)
		plan.Oldest = after(plan.Weeks, t.finder.retained.decidedOldest(scope))
		plan.FreesName = known && !t.finder.names.Keeps(scope, plan.Oldest)
		return nil
	})
	if err == nil && plan.Oldest > weekbucket.Max {
		err = &ArgumentError{"scope", fmt.Sprintf("%q has claims in %s, the last possible week", scope, weekbucket.Max)}
	}
	if err == nil {
		plan.Holds, err = t.holds.named(holds)
	}
	if err != nil {
		return plan, err
	}
	if err := t.core.enter(); err != nil {
		return plan, err
	}
	defer t.core.leave()
	for i := range plan.Weeks {
		w := &plan.Weeks[i]
		w.Scope = scope
		if w.Bytes, err = t.core.store.BucketBytes(storage.Bucket{Scope: scope, Week: w.Week}); err != nil {
			return plan, t.core.stop(err)
		}
	}
	return plan, nil
}

// after returns the week after the last one, or oldest if there are none.
func after(weeks []ScopeInfo, oldest weekbucket.Week) weekbucket.Week {
	if n := len(weeks); n > 0 {
		return weeks[n-1].Week + 1
	}
	return oldest
}

// weeksOf returns the weeks in which the scope with this number has claims, oldest first. Only the
// committer calls it.
func weeksOf(s *filters.Set, number uint64, known bool) (weeks []ScopeInfo) {
	for b, claims := range s.Buckets() {
		if known && b.Scope == number {
			weeks = append(weeks, ScopeInfo{Week: b.Week, Claims: claims})
		}
	}
	slices.SortFunc(weeks, func(a, b ScopeInfo) int { return int(a.Week) - int(b.Week) })
	return weeks
}

// DropScope carries out the plan if the store still matches it: the same weeks with the same
// numbers of claims, and the same holds. Otherwise it changes nothing and returns ErrPlanOutdated.
// Holds that the plan does not name do not protect the scope. On return, the claims are durably
// removed and the holds released; the disk space is freed in the background (see Reclaimed).
//
// After a crash, either nothing was done, or the drop was decided and the next open continues it.
// Called again with a plan that was already decided, DropScope completes it.
//
// A transaction that has claimed an event of the scope in these weeks and commits afterwards fails
// with ErrWeekDropped. A Lease on such a claim fails with ErrLeaseLost.
func (t *Retention) DropScope(ctx context.Context, plan ScopeDropPlan) (DropReport, error) {
	var report DropReport
	if err := t.beginDrop(ctx); err != nil {
		return report, err
	}
	defer t.endDrop()
	err := t.queue.control(ctx, func(g *group) error {
		report.Oldest = t.finder.retained.decideOld
		there := t.holds.among(plan.holdNames())
		oldest := t.finder.retained.decidedOldest(plan.Scope)
		if plan.decided(oldest, there) {
			return nil
		}
		if err := t.finder.incomplete(); err != nil {
			return err
		}
		for _, hold := range there {
			if err := t.core.ownerships.checkOwnHold(keyspace.Space{}, hold.Name); err != nil {
				return err
			}
		}
		number, known := t.finder.names.Number(plan.Scope)
		if err := plan.compare(weeksOf(t.finder.filters, number, known), oldest, there); err != nil {
			return err
		}
		if plan.Oldest > oldest {
			until := map[string]weekbucket.Week{plan.Scope: plan.Oldest}
			if err := t.finder.retained.floors.raise(g, until); err != nil {
				return err
			}
			report.Scopes = until
		}
		for _, hold := range there {
			w := storage.StateWrite{Key: holdKey(hold.Name)}
			g.batch.State = append(g.batch.State, w)
			t.holds.noteWrite(w)
		}
		return nil
	})
	if err != nil {
		return report, err
	}
	return report, t.removeUnretained(ctx, &report)
}

func (p *ScopeDropPlan) holdNames() []string {
	names := make([]string, len(p.Holds))
	for i, hold := range p.Holds {
		names[i] = hold.Name
	}
	return names
}

// decided reports whether the plan was already decided, given the scope's oldest retained week and
// the existing holds of the plan.
func (p *ScopeDropPlan) decided(oldest weekbucket.Week, there []Hold) bool {
	return len(p.Weeks)+len(p.Holds) > 0 && after(p.Weeks, p.Oldest) == p.Oldest && p.Oldest <= oldest && len(there) == 0
}

// compare returns ErrPlanOutdated if the weeks, the oldest week or the holds differ from the plan.
func (p *ScopeDropPlan) compare(weeks []ScopeInfo, oldest weekbucket.Week, there []Hold) error {
	same := slices.EqualFunc(weeks, p.Weeks, func(a, b ScopeInfo) bool { return a.Week == b.Week && a.Claims == b.Claims })
	held := slices.EqualFunc(there, p.Holds, func(a, b Hold) bool { return a.Name == b.Name && a.At.Equal(b.At) })
	switch {
	case !same || after(weeks, oldest) != p.Oldest || p.Oldest > weekbucket.Max:
		return fmt.Errorf("%w: scope %q has claims in %d weeks, which are not those of the plan", ErrPlanOutdated, p.Scope, len(weeks))
	case !held:
		return fmt.Errorf("%w: a hold was moved or released", ErrPlanOutdated)
	}
	return nil
}
