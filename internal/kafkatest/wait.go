package kafkatest

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait. It is long, because a test that reaches it runs on a busy machine.
const patience = 90 * time.Second

// Until returns when the condition holds, and fails the test if that takes too long. It checks
// about a hundred times a second.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !Within(patience, condition) {
		t.Fatalf("waited %v for: %s", patience, what)
	}
}

// Receive returns the next value of c, the zero value if c is closed, and fails the test if that
// takes too long. Call it from the goroutine of the test.
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

// Within checks until the condition holds or the timeout expires, and reports whether it held.
func Within(d time.Duration, condition func() bool) bool {
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

// NoGoroutines fails the test if goroutines whose stacks contain one of the parts have begun since the call
// and remain after the test has ended and all later cleanups have run: call it first. A part is a piece of a
// package path or of a function's name. Other tests must not run in parallel with this one.
func NoGoroutines(t testing.TB, parts ...string) {
	t.Helper()
	earlier := make(map[string]bool) // such as one that a client of an earlier test has left
	for _, stack := range stacks() {
		earlier[number(stack)] = true
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // a test that failed may leave goroutines
		}
		if left := leftOver(patience, earlier, parts); len(left) > 0 {
			t.Errorf("%d goroutines are left, the first one:\n%s", len(left), left[0])
		}
	})
}

// leftOver returns the stacks that contain a part, are not of earlier goroutines, and do not end within d.
func leftOver(d time.Duration, earlier map[string]bool, parts []string) (left []string) {
	Within(d, func() bool {
		left = slices.DeleteFunc(stacks(), func(stack string) bool {
			return earlier[number(stack)] || !slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(stack, part) })
		})
		return len(left) == 0
	})
	return left
}

// number is that of the goroutine of a stack. A number is not used again.
func number(stack string) string {
	n, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
	return n
}

// stacks returns those of all goroutines except the calling one.
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
