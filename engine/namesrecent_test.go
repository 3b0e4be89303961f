package engine

import (
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The numbers of the last claim are looked up again once names were freed.
func TestFreedNamesAreRecordedAgain(t *testing.T) {
	const week = 10
	for what, free := range map[string]func(n *names){
		"a week":  func(n *names) { n.release(week+1, nil, 100) },
		"a scope": func(n *names) { n.releaseScope("scope", week+1, nil) },
	} {
		n := newNames()
		count := func(scope string) int {
			_, _, writes, err := n.claimRefs(scope, "topic", week, []storage.StateWrite{})
			if err != nil {
				t.Fatal(err)
			}
			return len(writes)
		}
		if first, again, other := count("scope"), count("scope"), count("other"); first != 4 || again != 0 || other != 2 {
			t.Errorf("%d, %d and %d writes", first, again, other)
		}
		count("scope")
		if free(n); count("scope") == 0 {
			t.Errorf("after the names of %s were freed, they are not recorded again", what)
		}
	}
}
