package runs

import (
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// Tables of a level may share a key that is not in the first of them.
func TestTablesThatShareABoundary(t *testing.T) {
	filled := func(smallest, largest string, exclusive bool) *table {
		return &table{smallest: []byte(smallest), largest: []byte(largest), exclusive: exclusive}
	}
	g := group{}.with(filled("m", "p", false)).with(filled("c", "f", true)).with(filled("f", "h", false))
	for key, want := range map[string]string{"b": "", "c": "c", "e": "c", "f": "f", "h": "f", "i": "", "m": "m", "p": "m", "q": ""} {
		got := ""
		if found := g.find([]byte(key)); found != nil {
			got = string(found.smallest)
		}
		if got != want {
			t.Errorf("%q is in the table from %q, want %q", key, got, want)
		}
	}
	for _, other := range []*table{filled("a", "c", false), filled("h", "k", false), filled("d", "e", false), filled("a", "z", false), filled("p", "z", false)} {
		if g.with(other) != nil {
			t.Errorf("%q to %q does not overlap", other.smallest, other.largest)
		}
	}
	if g.with(filled("a", "c", true)) == nil {
		t.Error("a table that ends before the others overlaps")
	}
	span := pebble.KeyRange{Start: []byte("g"), End: []byte("m")}
	if !g.hasOlder(span, 1) || g.hasOlder(span, 0) || g.hasOlder(pebble.KeyRange{Start: []byte("i"), End: []byte("m")}, math.MaxUint64) {
		t.Error("hasOlder")
	}
}
