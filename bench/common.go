package bench

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"
)

// Progress reports the progress of a stage of a run; total is 0 if unknown. A nil Progress reports
// nothing. It is called from one goroutine at a time and returns at once.
type Progress func(stage string, done, total uint64)

func (p Progress) tell(stage string, done, total uint64) {
	if p != nil {
		p(stage, done, total)
	}
}

var (
	// ErrUsage means that the options of a run are invalid.
	ErrUsage = errors.New("usage")

	// ErrNotHeld means that a run was completed and its checks failed: keep its directory and
	// report it.
	ErrNotHeld = errors.New("a promise was broken")
)

// keepAndReport is the remedy for a run whose store contains an error.
const keepAndReport = "run again with --dir to keep the store, and report it"

// Outcome is the part of every report that says how the run ended.
type Outcome struct {
	// Error says why the figures are incomplete, or which check failed; empty if all is well.
	Error string `json:"error,omitempty"`
}

// end records the error with which a run ended, and adds the remedy.
func (o *Outcome) end(err *error) {
	*err = withHint(*err)
	if *err != nil && o.Error == "" {
		o.Error = (*err).Error()
	}
}

// withHint adds a remedy to an error without one.
func withHint(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: free space in that directory and run again, or give another one with --dir", err)
	}
	return err
}

// together calls do with each number below n, concurrently, and returns the first error.
func together(n int, do func(i int) error) (first error) {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- do(i) }()
	}
	for range n {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// less is a-b, 0 if that is negative.
func less(a, b uint64) uint64 { return a - min(a, b) }

// apart returns the difference of a and b.
func apart(a, b uint64) uint64 { return less(a, b) + less(b, a) }

func sum(offsets []int64) (all uint64) {
	for _, o := range offsets {
		all += uint64(o)
	}
	return all
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// stopwatch starts a clock; the returned func sets seconds to the time since then.
func stopwatch(seconds *float64) func() {
	start := time.Now()
	return func() { *seconds = time.Since(start).Seconds() }
}

// thousands writes a number with a comma in each thousand.
func thousands(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
