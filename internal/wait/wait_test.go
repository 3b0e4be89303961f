package wait_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/internal/wait"
)

func TestForReturnsAfterTheTime(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, 2 * time.Millisecond} {
		begun := time.Now()
		if err := wait.For(context.Background(), d); err != nil || time.Since(begun) < d {
			t.Errorf("a wait of %v ended after %v: %v", d, time.Since(begun), err)
		}
	}
}

func TestForEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- wait.For(ctx, time.Hour) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestForWithAnEndedContextIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 { // a timer of 0 may also be ready
		if err := wait.For(ctx, 0); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}
