package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
)

var (
	// ErrUsage says that a run was asked for something that cannot be.
	ErrUsage = errors.New("usage")

	// ErrNotHeld says that a run was completed and what it checks does not hold: keep its directory
	// and report it.
	ErrNotHeld = errors.New("a promise was broken")
)

// Outcome is the part of every report that says how the run ended.
type Outcome struct {
	// Error is why the figures are not complete, or what does not hold; empty if all is well.
	Error string `json:"error,omitempty"`
}

// end notes the error that a run ended with, and adds what to do about it.
func (o *Outcome) end(err *error) {
	*err = withHint(*err)
	if *err != nil && o.Error == "" {
		o.Error = (*err).Error()
	}
}

// withHint adds what to do to an error that does not say it.
func withHint(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: free space in that directory and run again, or give another one with --dir", err)
	}
	return err
}

// several makes one error, of one line, of those of several workers: that of the first of them, and
// how many more there are. Workers that only stopped because of another one count last.
func several(errs ...error) error {
	var first error
	more := -1
	for _, err := range errs {
		switch {
		case err == nil:
			continue
		case first == nil, errors.Is(first, context.Canceled) && !errors.Is(err, context.Canceled):
			first = err
		}
		more++
	}
	if more > 0 {
		return fmt.Errorf("%w (and %d more)", first, more)
	}
	return first
}

// together calls do with each number below n, all at once, and returns the errors as several does.
func together(n int, do func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return several(errs...)
}

// Progress is told how far a stage of a run has come; total is 0 where that is not known. A nil
// Progress is told nothing. It is called from one goroutine at a time and returns at once.
type Progress func(stage string, done, total uint64)

func (p Progress) tell(stage string, done, total uint64) {
	if p != nil {
		p(stage, done, total)
	}
}
