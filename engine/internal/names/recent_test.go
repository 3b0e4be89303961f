package names

import (
	"testing"

	"github.com/hapax-dev/hapax/engine/storage"
)

// The numbers of the last claim are looked up again once names were freed.
func TestFreedNamesAreRecordedAgain(t *testing.T) {
	const week = 10
	for what, free := range map[string]func(n *Table){
		"a week":  func(n *Table) { n.Release(week+1, nil, 100) },
		"a scope": func(n *Table) { n.ReleaseScope("scope", week+1, nil) },
	} {
		n := New(errFull)
		count := func(scope string) int {
			_, _, writes, err := n.ClaimRefs(scope, "topic", week, []storage.StateWrite{})
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
