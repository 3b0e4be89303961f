package engine

import (
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/weekbucket"
)

// retained has the oldest retained weeks: the engine's, and those of scopes that retain fewer
// weeks.
type retained struct {
	decideOld weekbucket.Week // the engine's, as decided; used by the committer only
	oldest    atomic.Uint32   // the engine's, durable
	floors    floors
}

// oldestWeek returns the engine's oldest retained week.
func (k *retained) oldestWeek() weekbucket.Week { return weekbucket.Week(k.oldest.Load()) }

// oldestOf returns the oldest retained week of a scope: its earlier events are TooOld.
func (k *retained) oldestOf(scope string) weekbucket.Week {
	f := k.floors.durable.Load() // before oldestWeek: a floor is removed when the oldest week has reached it
	oldest := k.oldestWeek()
	if f != nil {
		return max(oldest, (*f)[scope])
	}
	return oldest
}

// decidedOldest is oldestOf with decided instead of durable weeks. Only the committer calls it.
func (k *retained) decidedOldest(scope string) weekbucket.Week {
	if len(k.floors.decided) == 0 {
		return k.decideOld
	}
	return max(k.decideOld, k.floors.decided[scope])
}

// oldestByNumber returns the current decidedOldest as a function of buckets with scope numbers.
// Only the committer calls it, or Open.
func (k *retained) oldestByNumber(n *names.Table) func(filters.Bucket) weekbucket.Week {
	oldest, of := k.decideOld, make(map[uint64]weekbucket.Week, len(k.floors.decided))
	for scope, week := range k.floors.decided {
		if ref, ok := n.Number(scope); ok {
			of[ref] = week
		}
	}
	return func(b filters.Bucket) weekbucket.Week { return max(oldest, of[b.Scope]) }
}

// firstRetained returns the oldest retained week if this is the current week.
func firstRetained(this weekbucket.Week, retention int) weekbucket.Week {
	if retention == KeepAll || weekbucket.Week(retention) > this {
		return weekbucket.Min
	}
	return this - weekbucket.Week(retention)
}
