package hapaxtest_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// A fakeT is the testing.TB of an example or of a test that must fail: it prints or keeps the
// errors.
type fakeT struct {
	testing.TB // nil: other methods are not called
	cleanups   []func()
	errors     []string
	print      bool
}

// newT returns a TB for an example. Its errors become the output of the example.
func newT() *fakeT { return &fakeT{print: true} }

func (t *fakeT) Helper()                  {}
func (t *fakeT) Name() string             { return "Example" }
func (t *fakeT) Context() context.Context { return context.Background() }
func (t *fakeT) Failed() bool             { return len(t.errors) > 0 }
func (t *fakeT) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }

func (t *fakeT) Logf(format string, args ...any) {
	if t.print {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}

func (t *fakeT) Errorf(format string, args ...any) {
	t.errors = append(t.errors, fmt.Sprintf(format, args...))
	if t.print {
		fmt.Println(t.errors[len(t.errors)-1])
	}
}

func (t *fakeT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	panic("the example ends") // examples run in the main goroutine, which must not exit
}

func (t *fakeT) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

// end runs the cleanups.
func (t *fakeT) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
