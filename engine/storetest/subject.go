package storetest

import (
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A reporter has the common methods of *testing.T and *rapid.T.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// A subject is one store under check, in its directory.
type subject struct {
	reporter
	test *testing.T
	h    Harness

	dir   string
	s     storage.Store // nil when closed
	stuck bool          // a call is in progress, so that the store cannot be closed
}

// shut closes the store if it is open.
func (e *subject) shut() {
	e.Helper()
	if e.s == nil || e.stuck {
		return
	}
	s := e.s
	e.s = nil
	if err := s.Close(); err != nil {
		e.Errorf("closing the store: %v", err)
	}
}

func (e *subject) needCrash() {
	if e.h.CrashClone == nil {
		e.test.Skip("the harness has no CrashClone")
	}
}

func (e *subject) needAtomicClone() {
	e.needCrash()
	if !e.h.AtomicClone {
		e.test.Skip("the harness has no AtomicClone")
	}
}

// within fails the test if f takes too long or returns an error. f runs in a new goroutine.
func (e *subject) within(d time.Duration, what string, f func() error) {
	e.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			e.Fatalf("%s: %v", what, err)
		}
	case <-time.After(d):
		e.stuck = true
		e.Fatalf("%s has not returned after %v", what, d)
	}
}
