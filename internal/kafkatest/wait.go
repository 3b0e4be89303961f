package kafkatest

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait. It is long, because a test that has to be patient runs on a machine
// that has other things to do.
const patience = 90 * time.Second

// Until returns when the condition holds, and fails the test if that takes too long. It asks about
// a hundred times a second.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !within(patience, condition) {
		t.Fatalf("waited %v for: %s", patience, what)
	}
}

// Receive returns what comes from c, the zero value if c is closed, and fails the test if that takes
// too long. Call it from the goroutine of the test.
func Receive[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	over := time.NewTimer(patience)
	defer over.Stop()
	select {
	case v = <-c:
	case <-over.C:
		t.Fatalf("waited %v for a channel", patience)
	}
	return v
}

// within asks until the condition holds or the time is over, and says whether it held.
func within(d time.Duration, condition func() bool) bool {
	over := time.NewTimer(d)
	defer over.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !condition() {
		select {
		case <-again.C:
		case <-over.C:
			return false
		}
	}
	return true
}

// NoGoroutines fails the test if goroutines whose stacks mention one of the parts are left when it
// has ended and everything that was registered later is cleaned up: call it first. A part is a
// piece of a package path or of a function's name. Other tests must not run in parallel with this
// one.
func NoGoroutines(t testing.TB, parts ...string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			return // a test that failed may leave anything
		}
		if left := leftOver(patience, parts); len(left) > 0 {
			t.Errorf("%d goroutines are left, the first one:\n%s", len(left), left[0])
		}
	})
}

// leftOver are the stacks that mention a part and do not go away within d.
func leftOver(d time.Duration, parts []string) (left []string) {
	within(d, func() bool {
		left = slices.DeleteFunc(stacks(), func(stack string) bool {
			return !slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(stack, part) })
		})
		return len(left) == 0
	})
	return left
}

// stacks are those of all goroutines but the one that asks.
func stacks() []string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return strings.Split(string(buf[:n]), "\n\n")[1:]
		}
		buf = make([]byte, 2*len(buf))
	}
}
