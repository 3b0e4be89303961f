package kafkaadapter

import (
	"context"
	"sync/atomic"
	"time"
)

// A state is a stage in the life of an assigned partition. Each assignment has one goroutine, which
// is in one state at a time; nothing else changes the state.
type state uint8

const (
	restoring   state = iota // opens the partition's own store from its changelog
	lookingUp                // asks the brokers for the topic's id, the log's bounds and the end of the last epoch
	takingOver               // compares these with the store and the group's commit, and becomes the owner in the store
	signing                  // commits the offset to Kafka with the store's identity
	failingOpen              // the store is unavailable: starts at Kafka's offset, and commits it with a mark
	publishing               // publishes dead letters that the store has and the broker has not acknowledged
	running                  // handles records
	unprotected              // the store is unavailable: handles records without claims
	paused                   // waits until the application resumes it
	stopped                  // does not read the partition, for a stated reason, until the next try
	ended                    // the assignment is over
	stateCount
)

var stateNames = [stateCount]string{"restoring", "lookingUp", "takingOver", "signing", "failingOpen", "publishing", "running", "unprotected", "paused", "stopped", "ended"}

func (s state) String() string { return stateNames[s] }

// A status is the visible state of a partition.
type status struct {
	state state
	// why the partition is not read, or was not read before the current try; nil while it is read
	stop     *StopError
	nextTry  time.Time   // when a stopped partition is retried; zero if that needs a new assignment
	adopting *adoption   // submitted and not ended
	adopted  []*adoption // those that have met a further disagreement, which stops the partition
}

// A stopHook calls OnStop for an assignment, one call at a time.
type stopHook struct {
	hook    func(*StopError)          // nil: there is none
	calling chan struct{}             // has room while no call runs
	next    atomic.Pointer[StopError] // the next report of the running goroutine; usually nil
}

func newStopHook(hook func(*StopError)) stopHook {
	return stopHook{hook: hook, calling: make(chan struct{}, 1)}
}

// call calls the hook with the result of e when no other call runs. If the result is nil, it does
// not call the hook.
func (h *stopHook) call(e func() *StopError) {
	if h.hook == nil {
		return
	}
	h.calling <- struct{}{}
	defer func() { <-h.calling }()
	if e := e(); e != nil {
		h.hook(e.copy())
	}
}

// begin reports e in the background, unless isEnding returns true first. While a call runs, only
// the last error is kept.
func (h *stopHook) begin(e *StopError, isEnding func() bool) {
	if h.hook == nil || h.next.Swap(e) != nil {
		return
	}
	go h.call(func() *StopError {
		if e := h.next.Swap(nil); !isEnding() {
			return e
		}
		return nil
	})
}

// wait waits until no call runs, or ctx ends.
func (h *stopHook) wait(ctx context.Context) {
	select {
	case h.calling <- struct{}{}:
		<-h.calling
	case <-ctx.Done():
	}
}
