package bench

import (
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

func TestTenthsOfTheEventsAreTimedApart(t *testing.T) {
	var sizes []int
	src, err := newSource(traffic.UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	o := &feeding{source: src, n: 105, plan: callers.Plan{Callers: 1, Batch: 8}}
	f, err := feed(t.Context(), o, func(events []engine.Event) ([]engine.Event, error) { return events, nil }, func(events []engine.Event) func() error {
		sizes = append(sizes, len(events))
		return func() error { return nil }
	})
	want := slices.Concat([]int{8, 2}, slices.Repeat([]int{8}, 10), []int{5}, []int{8, 2})
	if err != nil || !slices.Equal(sizes, want) {
		t.Errorf("batches of %v, want %v: %v", sizes, want, err)
	}
	if f.firstTenth <= 0 || f.lastTenth <= 0 || f.firstTenth+f.lastTenth >= f.took {
		t.Errorf("the first tenth took %v, the last %v, all %v", f.firstTenth, f.lastTenth, f.took)
	}
}
