package runs

import (
	"cmp"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A candidate is a table that may be in a list.
type candidate struct {
	bounds pebble.KeyRange
	order  int // those of equal order do not overlap; otherwise the newer has the lower one
	week   weekbucket.Week
	at     int // place in what the caller has
}

func newCandidate(smallest, largest []byte, exclusive bool, order, at int) candidate {
	return candidate{boundsOf(smallest, largest, exclusive), order, max(weekOf(smallest), weekOf(largest)), at}
}

// weekOf returns the week of a claim, or the least one for other keys.
func weekOf(key []byte) weekbucket.Week {
	if len(key) > 0 && key[0] == Space {
		if b, _, err := storage.SplitKey(key[1:]); err == nil {
			return b.Week
		}
	}
	return 0
}

// byWorth sorts tables by how much they are worth in a list. The newest ones are: what is being
// claimed is there, also if its week is an old one. Then come those of the newest weeks.
func byWorth(tables []candidate, newest int) {
	week := func(a, b candidate) int { return cmp.Compare(b.week, a.week) }
	slices.SortStableFunc(tables, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.order, b.order), week(a, b)) })
	slices.SortStableFunc(tables[min(newest, len(tables)):], week)
}
