package engine

import (
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/weekbucket"
)

// retained are the oldest retained weeks: the engine's, and those of scopes with a shorter retention.
type retained struct {
	decideOld weekbucket.Week // used by the committer: the engine's, as decided
	oldest    atomic.Uint32   // the engine's, durable
	floors    floors
}

// oldestWeek returns the oldest retained week of scopes that have none of their own.
func (k *retained) oldestWeek() weekbucket.Week { return weekbucket.Week(k.oldest.Load()) }

// oldestOf returns the oldest retained week of a scope: its earlier events are TooOld.
func (k *retained) oldestOf(scope string) weekbucket.Week {
	f := k.floors.durable.Load() // first: a floor is removed when the oldest week has reached it
	oldest := k.oldestWeek()
	if f != nil {
		return max(oldest, (*f)[scope])
	}
	return oldest
}

// decidedOldest is oldestOf as the committer has decided it. Only the committer calls it.
func (k *retained) decidedOldest(scope string) weekbucket.Week {
	if len(k.floors.decided) == 0 {
		return k.decideOld
	}
	return max(k.decideOld, k.floors.decided[scope])
}

// oldestByNumber returns the current decidedOldest, for scopes by their numbers. Only the committer
// calls it, or Open.
func (k *retained) oldestByNumber(n *names.Table) func(filters.Bucket) weekbucket.Week {
	oldest, of := k.decideOld, make(map[uint64]weekbucket.Week, len(k.floors.decided))
	for scope, week := range k.floors.decided {
		if ref, ok := n.Number(scope); ok {
			of[ref] = week
		}
	}
	return func(b filters.Bucket) weekbucket.Week { return max(oldest, of[b.Scope]) }
}

// firstRetained returns the oldest retained week if this is the current one.
func firstRetained(this weekbucket.Week, retention int) weekbucket.Week {
	if retention == KeepAll || weekbucket.Week(retention) > this {
		return weekbucket.Min
	}
	return this - weekbucket.Week(retention)
}
