package runs

import (
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/weekbucket"
)

func TestTablesOfNewWeeksAreWorthMost(t *testing.T) {
	var all []candidate
	for i, c := range []struct {
		order int
		week  weekbucket.Week
	}{{0, 3}, {1, 1}, {2, 2}, {3, 3}, {4, 1}, {4, 5}, {4, 3}} {
		all = append(all, candidate{order: c.order, week: c.week, at: i})
	}
	for newest, want := range map[int][]int{0: {5, 0, 3, 6, 2, 1, 4}, 2: {0, 1, 5, 3, 6, 2, 4}, 9: {0, 1, 2, 3, 5, 6, 4}} {
		tables := slices.Clone(all)
		byWorth(tables, newest)
		for i := range tables {
			if tables[i].at != want[i] {
				t.Errorf("the newest %d first: %v, want %v", newest, tables, want)
				break
			}
		}
	}
	if c := newCandidate(claimKey("a", 7, 1), claimKey("b", 3, 1), false, 0, 0); c.week != week0+7 {
		t.Errorf("week %d", c.week)
	}
	if weekOf(nil) != 0 || weekOf([]byte{'s'}) != 0 || weekOf([]byte{Space, 'x'}) != 0 {
		t.Error("a key of no claim has a week")
	}
}
