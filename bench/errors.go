package bench

import "errors"

var (
	// ErrUsage says that a run was asked for something that cannot be.
	ErrUsage = errors.New("usage")

	// ErrNotHeld says that a run was completed and what it checks does not hold: keep its directory and report it.
	ErrNotHeld = errors.New("a promise was broken")
)

// Outcome is the part of every report that says how the run ended.
type Outcome struct {
	// Error is why the figures are not complete, or what does not hold; empty if all is well.
	Error string `json:"error,omitempty"`
}

// end notes the error that a run ended with.
func (o *Outcome) end(err error) {
	if err != nil && o.Error == "" {
		o.Error = err.Error()
	}
}

// Progress is told how far a stage of a run has come; total is 0 where that is not known. A nil Progress is told
// nothing. It is called from one goroutine at a time and returns at once.
type Progress func(stage string, done, total uint64)

func (p Progress) tell(stage string, done, total uint64) {
	if p != nil {
		p(stage, done, total)
	}
}
