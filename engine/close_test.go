package engine

import (
	"errors"
	"runtime"
	"testing"
	"time"
)

// If Close waits for another call, a call that has found the engine open before does not wait for
// Close, because the other call may wait for it.
func TestCallThatMeetsAWaitingCloseReturns(t *testing.T) {
	var e Engine
	if err := e.core.enter(); err != nil { // the call that Close waits for
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		e.core.calls.Lock() // as Close does
		defer e.core.calls.Unlock()
	}()
	for e.core.calls.TryRLock() {
		e.core.calls.RUnlock()
		runtime.Gosched()
	}
	entered := make(chan error, 1)
	go func() { entered <- e.core.enter() }()
	select {
	case err := <-entered:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("the call was admitted while Close waits: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call waits for Close, which waits for the other call")
	}
	e.core.leave()
	<-closed
}
