package callers

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTogetherReturnsAnErrorOfAny(t *testing.T) {
	failed := errors.New("failed")
	err := Together(3, func(i int) error {
		if i == 1 {
			return failed
		}
		return nil
	})
	if !errors.Is(err, failed) {
		t.Errorf("%v, want %v", err, failed)
	}
	if err := Together(2, func(int) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestCallerHasBatchesInFlightAndWaitsForAll(t *testing.T) {
	for inFlight, most := range map[int]int{0: 1, 1: 1, 3: 3, 100: 20} {
		started, waited, atOnce := 0, 0, 0
		taken, err := Take(t.Context(), Plan{Callers: 1, Batch: 10, InFlight: inFlight}, make([]int, 195), func([]int) func() error {
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
		if err != nil || taken != 195 || started != 20 || waited != started || atOnce != most {
			t.Errorf("in flight %d: %d taken, %d started, %d waited for, %d at once, want %d: %v", inFlight, taken, started, waited, atOnce, most, err)
		}
	}
}

func TestTakingEndsWithTheErrorOfABatch(t *testing.T) {
	failed := errors.New("failed")
	for _, at := range []int{2, 20} {
		started := 0
		_, err := Take(t.Context(), Plan{Callers: 1, Batch: 10, InFlight: 4}, make([]int, 200), func([]int) func() error {
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
	_, err := Take(ctx, Plan{Callers: 1, Batch: 10, InFlight: 4}, make([]int, 200), func([]int) func() error {
		cancel()
		return func() error { return nil }
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestNothingIsTakenAfterTheTime(t *testing.T) {
	p := Plan{Callers: 2, Batch: 10, Until: time.Now()}
	taken, err := Take(t.Context(), p, make([]int, 200), func([]int) func() error {
		t.Error("a batch is started")
		return func() error { return nil }
	})
	if taken != 0 || err != nil {
		t.Errorf("%d taken, %v", taken, err)
	}
}
