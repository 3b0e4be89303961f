package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
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

func TestBoundEndsBeforeTheDeadlineOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for deadline, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Minute: 5 * time.Second, 4 * time.Second: 2 * time.Second} {
			ctx, cancel := context.WithCancel(context.Background())
			if deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, deadline)
			}
			begun := time.Now()
			bound, end := wait.Bound(ctx, 5*time.Second)
			<-bound.Done()
			if took := time.Since(begun); took != want || ctx.Err() != nil {
				t.Errorf("deadline %v: it ends after %v, want %v", deadline, took, want)
			}
			end()
			cancel()
		}
	})
}
