package bench

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

func newFeeding(t *testing.T, n, batch, inFlight int) *feeding {
	src, err := newSource(1, traffic.UUIDv4, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &feeding{source: src, n: n, batch: batch, callers: 1, inFlight: inFlight}
}

func same(events []engine.Event) ([]engine.Event, error) { return events, nil }

func TestCallerHasBatchesInFlightAndWaitsForAll(t *testing.T) {
	for inFlight, most := range map[int]int{0: 1, 1: 1, 3: 3, 100: 16} {
		started, waited, atOnce := 0, 0, 0
		f, err := feed(t.Context(), newFeeding(t, 200, 10, inFlight), same, func([]engine.Event) func() error {
			started++
			mine := started
			atOnce = max(atOnce, started-waited)
			return func() error {
				if waited++; waited != mine {
					t.Errorf("waited for batch %d before batch %d", mine, waited)
				}
				return nil
			}
		})
		if err != nil || f.n != 200 || started != 20 || waited != started || atOnce != most {
			t.Errorf("in flight %d: fed %d, started %d, waited for %d, %d at once, want %d: %v", inFlight, f.n, started, waited, atOnce, most, err)
		}
	}
}

func TestFeedingEndsWithTheErrorOfABatch(t *testing.T) {
	failed := errors.New("failed")
	for _, at := range []int{2, 20} {
		started := 0
		_, err := feed(t.Context(), newFeeding(t, 200, 10, 4), same, func([]engine.Event) func() error {
			started++
			mine := started
			return func() error {
				if mine == at {
					return failed
				}
				return nil
			}
		})
		if !errors.Is(err, failed) {
			t.Errorf("batch %d fails: %v", at, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := feed(ctx, newFeeding(t, 200, 10, 4), same, func([]engine.Event) func() error {
		cancel()
		return func() error { return nil }
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestTenthsOfTheEventsAreTimedApart(t *testing.T) {
	var sizes []int
	f, err := feed(t.Context(), newFeeding(t, 105, 8, 1), same, func(events []engine.Event) func() error {
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
