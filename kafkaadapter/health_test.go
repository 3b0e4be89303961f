package kafkaadapter

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

func probed(h http.Handler) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code
}

func TestReadyWhileAllPartitionsAreRead(t *testing.T) {
	r := newRig(t, 2)
	idle, err := New(r.eng, r.options(r.work(2, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Ready(); !errors.Is(err, ErrNotReady) {
		t.Errorf("ready before Run: %v", err)
	}
	if err := idle.Live(); err != nil {
		t.Errorf("not live before Run: %v", err)
	}

	r.send(t, 0, "a")
	m := r.start(t, r.work(2, nil))
	kafkatest.Until(t, "ready with both partitions", func() bool { return len(m.parts.all()) == 2 && m.Ready() == nil }) // the first assignment may be empty
	if ready, live := probed(m.ReadyHandler()), probed(m.LiveHandler()); ready != http.StatusOK || live != http.StatusOK {
		t.Errorf("probes answer %d and %d", ready, live)
	}
	m.stop(t)
	if err := m.Live(); !errors.Is(err, ErrNotLive) {
		t.Errorf("live after Run: %v", err)
	}
	if ready, live := probed(m.ReadyHandler()), probed(m.LiveHandler()); ready != http.StatusServiceUnavailable || live != http.StatusServiceUnavailable {
		t.Errorf("probes answer %d and %d", ready, live)
	}
}

func TestNotReadyWhileAPartitionIsStopped(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	bad := r.event(0, "")
	bad.Headers = nil
	r.Produce(t, bad)
	r.DeleteTopic(t, r.topic+"-dlt")
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Identify.NoPosition = true })
	stop := m.stoppedOne(t)
	kafkatest.Until(t, "not ready", func() bool { return m.Ready() != nil })
	var reason *StopError
	if err := m.Ready(); !errors.Is(err, ErrNotReady) || !errors.As(err, &reason) || reason.Reason != stop.Reason {
		t.Errorf("Ready: %v", err)
	}
	if err := m.Live(); err != nil {
		t.Errorf("a stopped partition makes the consumer not live: %v", err)
	}
}

func TestHandlerThatTakesTooLongFailsAnAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "slow", "next")
	var cause error
	m := r.start(t, r.work(2, func(ctx context.Context, _ *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) != "slow" {
			return nil
		}
		<-ctx.Done()
		cause = context.Cause(ctx)
		return ctx.Err()
	}), func(o *Options) { o.Routes[0].HandlerTimeout = time.Millisecond })
	r.untilStored(t, 0, 2)
	m.counts(t, 2, "failed_attempts_total")
	m.counts(t, 1, "dead_letters_total")
	r.checkOnce(t, "next")
	m.stop(t)
	if !errors.Is(cause, ErrHandlerTimeout) {
		t.Errorf("the handler's context ended because of %v", cause)
	}
}

func TestNotLiveWhileAHandlerIgnoresItsTimeout(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	entered, leave := make(chan struct{}), make(chan struct{})
	m := r.start(t, r.work(2, func(context.Context, *engine.Tx, *Record) error {
		close(entered)
		<-leave
		return nil
	}), func(o *Options) {
		o.Routes[0].HandlerTimeout, o.DrainTimeout = time.Millisecond, time.Millisecond
	})
	kafkatest.Receive(t, entered)
	kafkatest.Until(t, "not live", func() bool { return errors.Is(m.Live(), ErrNotLive) })
	close(leave)
	r.untilStored(t, 0, 1)
	if err := m.Live(); err != nil {
		t.Errorf("not live after the handler has ended: %v", err)
	}
	m.stop(t)
}

func TestNotReadyBeforeAPartitionIsLookedUp(t *testing.T) {
	r := newRig(t, 1)
	c, err := New(r.eng, r.options(r.work(2, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tp := topicPartition{r.topic, 0}
	c.shared.health.joined.Store(true)
	c.parts.put(c.assign.newWorker(tp, nil, 0).state.partition)
	if err := c.Ready(); !errors.Is(err, ErrNotReady) {
		t.Errorf("ready while a partition is looked up: %v", err)
	}
}

// The store is open again, and a partition has not learned it yet: it still handles records without
// claims.
func TestNotReadyBeforeAPartitionIsBackAtTheStore(t *testing.T) {
	c, err := New(memEngine(t), someOptions())
	if err != nil {
		t.Fatal(err)
	}
	c.shared.health.joined.Store(true)
	c.shared.reach.OnBrokerRead(kgo.BrokerMetadata{}, int16(kmsg.Metadata), 0, 0, 0, nil)
	p := c.assign.newWorker(topicPartition{"in", 0}, nil, 0).state.partition
	c.parts.put(p)
	p.enter(unprotected)
	if err := c.Ready(); !errors.Is(err, ErrNotReady) || !errors.Is(err, ErrUnprotected) {
		t.Errorf("ready while records are handled without claims: %v", err)
	}
	p.enter(running)
	if err := c.Ready(); err != nil {
		t.Errorf("not ready when the partition uses the store again: %v", err)
	}
}
