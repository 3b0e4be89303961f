package engine

import (
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

// A scope's floor is forgotten right after the oldest week kept has reached it. A reader of both
// never sees the oldest week of the scope go back.
func TestOldestWeekOfAScopeNeverGoesBack(t *testing.T) {
	const rounds, weeks = 500, weekbucket.Week(5000)
	floors := make([]map[string]weekbucket.Week, weeks+1)
	for w := range floors {
		floors[w] = map[string]weekbucket.Week{"mail": weekbucket.Week(w)}
	}
	for range rounds {
		var e Engine
		go func() {
			for w := weekbucket.Week(1); w <= weeks; w++ {
				e.floors.durable.Store(&floors[w])
				e.oldest.Store(uint32(w)) // as drop and then forget do
				e.floors.durable.Store(nil)
			}
		}()
		for seen := weekbucket.Week(0); seen < weeks; {
			now := e.oldestOf("mail")
			if now < seen {
				t.Fatalf("the oldest week kept was %d, and is %d", seen, now)
			}
			seen = now
		}
	}
}
