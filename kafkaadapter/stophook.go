package kafkaadapter

import (
	"context"
	"sync/atomic"
)

// A stopHook calls Hooks.OnStop for an assignment, one call at a time.
type stopHook struct {
	hook    func(*StopError)          // nil: there is none
	calling chan struct{}             // has room while no call runs
	next    atomic.Pointer[StopError] // to be reported by a goroutine that has begun; usually nil
}

func newStopHook(hook func(*StopError)) stopHook {
	return stopHook{hook: hook, calling: make(chan struct{}, 1)}
}

// call reports what e returns once no other call runs. If that is nil, there is no call.
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

// begin reports e and does not wait, unless isEnding returns true before. While a call runs, only the last
// error waits.
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
