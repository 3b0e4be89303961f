package engine

import (
	"fmt"
	"maps"
	"sync/atomic"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A floor is the oldest retained week of one scope that is later than the engine's, because the
// scope has a shorter retention (Options.ScopeRetention) or was dropped (Retention.DropScope). Like
// the engine's oldest week, it only increases, is durable before a claim is removed, and decides
// which events are TooOld. A floor is removed when the engine's oldest week has reached it.
//
// On disk: stateFloor + scope, a week as in a key.

type floors struct {
	decided map[string]weekbucket.Week                 // the committer's
	durable atomic.Pointer[map[string]weekbucket.Week] // replaced, never modified; nil if there are none
}

func floorKey(scope string) []byte { return append([]byte{stateFloor}, scope...) }

// load reads one floor in its stored form.
func (f *floors) load(key, value []byte) error {
	week, err := weekbucket.FromKey(value)
	if err != nil || len(key) < 2 {
		return fmt.Errorf("%w: oldest week %x of scope %q", storage.ErrDamaged, value, key[1:])
	}
	f.set(string(key[1:]), week)
	return nil
}

// set sets a decided floor. Only the committer calls it, or Open.
func (f *floors) set(scope string, week weekbucket.Week) {
	if f.decided == nil {
		f.decided = make(map[string]weekbucket.Week)
	}
	f.decided[scope] = week
}

// publish returns a function that makes the decided floors visible to all goroutines.
func (f *floors) publish() func() {
	if len(f.decided) == 0 {
		return func() { f.durable.Store(nil) }
	}
	now := maps.Clone(f.decided)
	return func() { f.durable.Store(&now) }
}

// raise adds new floors to the group, all or, after an error, none. They must be later than the
// current ones. Only the committer calls it.
func (f *floors) raise(g *group, until map[string]weekbucket.Week) error {
	if len(until) == 0 {
		return nil
	}
	count := len(f.decided)
	for scope := range until {
		if _, there := f.decided[scope]; !there {
			count++
		}
	}
	if count > limits.ScopeRetentions {
		return errTooManyFloors(count)
	}
	for scope, week := range until {
		f.set(scope, week)
		g.batch.State = append(g.batch.State, storage.StateWrite{Key: floorKey(scope), Value: week.AppendKey(nil)})
	}
	g.after = append(g.after, f.publish())
	return nil
}

func errTooManyFloors(count int) error {
	return fmt.Errorf("%w: %d scopes would keep fewer weeks than the others, at most %d may: name fewer in Options.ScopeRetention, or drop further scopes after DropExpired has dropped the weeks of the first ones, for which RetentionWeeks must not be KeepAll", ErrLimit, count, limits.ScopeRetentions)
}

// free removes the records of dropped weeks of the scopes that have a floor, and frees the names
// that no retained week uses. It returns false if another batch must continue. The claims before
// the floors have been removed. Only the committer calls it.
func (f *floors) free(g *group, n *names.Table, s *filters.Set) (done bool) {
	if !s.Trusted() {
		return true // a scan may be counting by these numbers; the next drop frees the names
	}
	for scope, oldest := range f.decided {
		if len(g.batch.State) >= maxFreed {
			return false
		}
		var number uint64
		var weeks []weekbucket.Week
		number, weeks, g.batch.State = n.ReleaseScope(scope, oldest, g.batch.State)
		for _, week := range weeks {
			s.Forget(&g.journal, filters.Bucket{Scope: number, Week: week})
		}
	}
	return true
}

// forget removes the floors that the engine's oldest week has reached. The claims before them have
// been removed. Only the committer calls it.
func (f *floors) forget(g *group, oldest weekbucket.Week) {
	n := len(f.decided)
	for scope, week := range f.decided {
		if week <= oldest {
			delete(f.decided, scope)
			g.batch.State = append(g.batch.State, storage.StateWrite{Key: floorKey(scope)})
		}
	}
	if len(f.decided) < n {
		g.after = append(g.after, f.publish())
	}
}

// maxFreed bounds the writes of one batch that frees names.
const maxFreed = 1 << 14
