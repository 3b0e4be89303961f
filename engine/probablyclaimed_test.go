package engine

import (
	"testing"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// Filters that are being rebuilt do not say which events were claimed.
func TestProbablyClaimedWhileTheFiltersAreRebuilt(t *testing.T) {
	const week = 7
	s := filters.New(1<<20, 1000)
	r := &ahead{expected: make([]expected, askAhead+2)}
	for i := range r.expected {
		x := &r.expected[i]
		x.candidate.place, x.ok = place{week: week, hash: uint64(i+1) * 0x9E3779B97F4A7C15}, i%3 != 0
		if i%2 == 0 {
			s.AddNew(week, x.candidate.place.hash)
		}
	}
	for _, trusted := range []bool{false, true} {
		if trusted {
			if err := filters.NewSnapshots(s, filters.SnapshotOptions{Store: storetest.NewMem(storage.Identity{})}).Load(0); err != nil {
				t.Fatal(err)
			}
		}
		for i, got := range r.probablyClaimed(s) {
			if want := trusted && i%2 == 0 && i%3 != 0; got != want {
				t.Errorf("trusted=%t: event %d: %t, want %t", trusted, i, got, want)
			}
		}
	}
}
