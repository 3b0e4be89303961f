package kafkaadapter

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// checkEnds ends a member whose hook does not return.
func (m *member) checkEnds(t *testing.T) {
	t.Helper()
	m.cancel()
	select {
	case <-m.done:
	case <-time.After(30 * time.Second):
		t.Error("Run has not returned 30 s after its context ended; DrainTimeout is 2 s")
	}
}

// hangingHook makes OnStop not return until end is closed.
func hangingHook(end chan struct{}) (told chan *StopError, change func(*Options)) {
	told = make(chan *StopError, 100)
	return told, func(o *Options) {
		o.shutdownTimeout, o.DrainTimeout = 2*time.Second, 2*time.Second
		o.OnStop = func(e *StopError) { told <- e; <-end }
	}
}

// The reports of the other partitions, the log of the consumer and the end of Run do not wait for the
// call for one partition.
func TestHookThatHangsDelaysNoOtherReport(t *testing.T) {
	kafkatest.NoGoroutines(t, "hapax/kafkaadapter.(*")
	r := newRig(t, 2)
	end, release := make(chan struct{}), make(chan struct{})
	told, change := hangingHook(end)
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error { <-release; return nil }), soon, change)
	t.Cleanup(func() { close(end) })
	r.send(t, 0, "a")
	if e := kafkatest.Receive(t, told); e.Partition != 0 {
		t.Fatalf("told: %v", e)
	}
	r.send(t, 1, "b")
	if e := kafkatest.Receive(t, told); e.Partition != 1 {
		t.Errorf("told: %v", e)
	}
	kafkatest.Until(t, "the log", func() bool { return m.logs.has("the consumer is not ready") })
	close(release) // Run does not wait for the handlers
	r.untilStored(t, 0, 1)
	r.untilStored(t, 1, 1)
	m.checkEnds(t)
	if m.err != nil {
		t.Errorf("Run: %v", m.err)
	}
}

func TestHookThatHangsInTheGoroutineOfItsPartitionIsCutOff(t *testing.T) {
	r := newRig(t, 1)
	end := make(chan struct{})
	told, change := hangingHook(end)
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error { return Transient(errHandler) }), change)
	t.Cleanup(func() { close(end) })
	r.send(t, 0, "a")
	kafkatest.Receive(t, told)
	m.checkEnds(t)
	if !errors.Is(m.err, context.DeadlineExceeded) {
		t.Errorf("Run: %v", m.err)
	}
}

// Of the reports that come during a call, the last is told after it, and none at the end of the assignment.
func TestCallsOfAStopHookComeOneAtATime(t *testing.T) {
	told, end := make(chan string), make(chan struct{})
	running := 0 // without a lock: the race detector finds calls at the same time
	h := newStopHook(func(e *StopError) {
		if running++; running != 1 {
			t.Errorf("%d calls at a time", running)
		}
		told <- e.Reason
		<-end
		running--
	})
	var ending bool
	begin := func(reason string) { h.begin(&StopError{Reason: reason}, func() bool { return ending }) }
	begin("1")
	var all []string
	for _, more := range [][]string{{"2", "3", "4"}, {"5"}, nil} {
		all = append(all, kafkatest.Receive(t, told))
		for _, reason := range more {
			begin(reason)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		h.wait(ended) // it does not wait for the call
		end <- struct{}{}
	}
	if got := strings.Join(all, " "); got != "1 4 5" {
		t.Errorf("told %s", got)
	}
	h.wait(t.Context())
	ending = true
	begin("6")
	kafkatest.Until(t, "the end of the goroutine", func() bool { return h.next.Load() == nil })
	h.wait(t.Context())
	select {
	case reason := <-told:
		t.Errorf("told %s of an assignment that has ended", reason)
	default:
	}
}
