package engine

import (
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A scope's floor is removed right after the oldest retained week has reached it. A reader of both
// never sees the oldest week of the scope decrease.
func TestOldestWeekOfAScopeNeverDecreases(t *testing.T) {
	const rounds, weeks = 500, weekbucket.Week(5000)
	floors := make([]map[string]weekbucket.Week, weeks+1)
	for w := range floors {
		floors[w] = map[string]weekbucket.Week{"mail": weekbucket.Week(w)}
	}
	for range rounds {
		var e Engine
		go func() {
			for w := weekbucket.Week(1); w <= weeks; w++ {
				e.retained.floors.durable.Store(&floors[w])
				e.retained.oldest.Store(uint32(w)) // as drop and then forget do
				e.retained.floors.durable.Store(nil)
			}
		}()
		for seen := weekbucket.Week(0); seen < weeks; {
			now := e.retained.oldestOf("mail")
			if now < seen {
				t.Fatalf("the oldest retained week was %d, and is %d", seen, now)
			}
			seen = now
		}
	}
}
