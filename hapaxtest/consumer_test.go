package hapaxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/hapaxtest"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// add adds the value's length to the key, and fails first if fail is not nil.
func add(fail func(rec *kafkaadapter.Record) error) kafkaadapter.Transactional {
	return kafkaadapter.Transactional{MaxAttempts: 2, Handle: func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
		if err := tx.Add(rec.Key, int64(len(rec.Value))); err != nil {
			return err
		}
		if fail != nil {
			return fail(rec)
		}
		return nil
	}}
}

func route(mode kafkaadapter.Mode) kafkaadapter.Route {
	return kafkaadapter.Route{Topics: []string{"payments"}, Mode: mode, DeadLetters: &deadletter.Options{}}
}

func TestAtMostOnceIsHandledOnceAlsoThroughCrashes(t *testing.T) {
	var handled atomic.Int64
	c := hapaxtest.Start(t, route(kafkaadapter.AtMostOnce(func(context.Context, *kafkaadapter.Record) error {
		handled.Add(1)
		return nil
	})))
	c.DeliverTwice(payment("p1", "alice", "1"))
	c.DeliverThroughCrash(payment("p2", "alice", "1"), payment("p2", "alice", "1"))
	c.WantVerdicts("payments", map[engine.Verdict]int{engine.Claimed: 2, engine.Duplicate: 2})
	if n := handled.Load(); n != 2 {
		t.Errorf("handled %d times, want 2", n)
	}
}

func TestWaitIncludesHandlersOfAtMostOnce(t *testing.T) {
	release := make(chan struct{})
	var ended atomic.Bool
	c := hapaxtest.Start(t, route(kafkaadapter.AtMostOnce(func(context.Context, *kafkaadapter.Record) error {
		<-release
		ended.Store(true)
		return nil
	})))
	c.Deliver(payment("p1", "alice", "1"))
	go func() { // Wait reads the offset, too: it is durable before the handler runs
		defer close(release)
		kafkatest.Within(time.Minute, func() bool {
			o, _, err := c.Engine().Admin().Offset(context.Background(), engine.OffsetKey{Group: hapaxtest.Group, Topic: "payments"})
			return err != nil || o.Next == 1
		})
	}()
	c.Wait()
	if !ended.Load() {
		t.Error("Wait returned before the handler")
	}
}

func TestBatchesAreHandledAndCutByACrash(t *testing.T) {
	c := hapaxtest.Start(t, route(kafkaadapter.Transactional{MaxAttempts: 2, HandleBatch: func(_ context.Context, tx *engine.Tx, records []*kafkaadapter.Record) error {
		for _, rec := range records {
			if err := tx.Add(rec.Key, 1); err != nil {
				return err
			}
		}
		return nil
	}}))
	c.Deliver(payment("p1", "alice", "1"), payment("p2", "alice", "1"))
	c.DeliverThroughCrash(payment("p3", "alice", "1"))
	c.WantInt64("alice", 3)
	c.WantCalls("p3", 2)
}

func TestFailedAttemptThatACrashCutsIsMadeAgain(t *testing.T) {
	c := hapaxtest.Start(t, route(add(func(*kafkaadapter.Record) error { return errors.New("no") })))
	c.DeliverThroughCrash(payment("p1", "alice", "1"))
	c.WantLetters("payments-dlt", hapaxtest.Letter{Reason: deadletter.Attempts, Value: "1"})
	c.WantNoState("alice")
	c.WantCalls("p1", 3) // the first one left no trace
}

func TestTransientErrorsMakeTheRecordWait(t *testing.T) {
	var up atomic.Int64
	c := hapaxtest.Start(t, route(add(func(*kafkaadapter.Record) error {
		if up.Add(1) < 5 {
			return kafkaadapter.Transient(errors.New("the service is down"))
		}
		return nil
	})))
	c.Deliver(payment("p1", "alice", "1"))
	c.WantInt64("alice", 1)
	c.WantCalls("p1", 5)
	c.WantLetters("payments-dlt")
	if first := c.Calls()[0]; !kafkaadapter.IsTransient(first.Err) || first.Attempt != 1 || first.Topic != "payments" {
		t.Errorf("the first call: %+v", first)
	}
}

func TestRecordsWithoutAnIDAreDone(t *testing.T) {
	r := route(add(nil))
	r.Identify = identify.Rules{IDHeaders: []string{"message_id"}, Payload: func(*kgo.Record) ([]byte, time.Time, error) { return nil, time.Time{}, errors.New("no id") }}
	c := hapaxtest.Start(t, r)
	c.Deliver(&kgo.Record{Topic: "payments", Value: []byte("x")})
	c.WantLetters("payments-dlt", hapaxtest.Letter{Reason: deadletter.Undecodable, Value: "x"})
	c.WantVerdicts("payments", map[engine.Verdict]int{})
}

func TestAdvanceMovesTheClockOfTheEngine(t *testing.T) {
	r := route(add(nil))
	r.Window = time.Hour
	c := hapaxtest.Start(t, r)
	c.DeliverTwice(payment("p1", "alice", "1"))
	c.Wait()
	c.Advance(2 * time.Hour)
	late := payment("p1", "alice", "1")
	late.Timestamp = time.Now().Add(2 * time.Hour) // timestamps follow the machine
	c.Deliver(late)
	c.WantVerdicts("payments", map[engine.Verdict]int{engine.Claimed: 2, engine.Duplicate: 1})
	c.WantInt64("alice", 2)
}

func TestMessageToATopicOfARouteIsHandled(t *testing.T) {
	first := route(kafkaadapter.Transactional{MaxAttempts: 1, Handle: func(_ context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
		_, err := tx.Produce(engine.Message{Topic: "bookings", Key: rec.Key, Value: rec.Value})
		return err
	}})
	second := route(add(nil))
	second.Topics = []string{"bookings"}
	c := hapaxtest.Start(t, first, second)
	c.DeliverThroughCrash(payment("p1", "alice", "12"))
	c.WantInt64("alice", 2)
	c.WantMessages("bookings", "12")
}

// TestChecksFail is the negative control of the checks.
func TestChecksFail(t *testing.T) {
	fake := &fakeT{}
	defer fake.end()
	c := hapaxtest.Start(fake, route(add(nil)))
	c.Deliver(payment("p1", "alice", "1"))
	for name, check := range map[string]func(){
		"state":          func() { c.WantState("alice", "1") },
		"absent state":   func() { c.WantState("bob", "") },
		"no state":       func() { c.WantNoState("alice") },
		"sum":            func() { c.WantInt64("alice", 2) },
		"absent sum":     func() { c.WantInt64("bob", 1) },
		"letters":        func() { c.WantLetters("payments-dlt", hapaxtest.Letter{Reason: deadletter.Permanent, Value: "1"}) },
		"no letters":     func() { c.WantLetters("payments") },
		"messages":       func() { c.WantMessages("receipts", "1") },
		"no messages":    func() { c.WantMessages("payments") },
		"verdicts":       func() { c.WantVerdicts("payments", map[engine.Verdict]int{engine.Claimed: 2}) },
		"missed verdict": func() { c.WantVerdicts("payments", nil) },
		"calls":          func() { c.WantCalls("p1", 2) },
		"no calls":       func() { c.WantCalls("p1", 0) },
	} {
		before := len(fake.errors)
		check()
		if len(fake.errors) != before+1 {
			t.Errorf("%s: %d errors", name, len(fake.errors)-before)
		}
	}
	if got := fatal(fake, func() { c.Deliver(&kgo.Record{Topic: "other"}) }); !strings.Contains(got, `"other"`) {
		t.Errorf("a topic without a route: %s", got)
	}
}

// TestConsumerThatEndsFailsTheTest: Wait does not wait for a consumer that has ended.
func TestConsumerThatEndsFailsTheTest(t *testing.T) {
	fake := &fakeT{}
	defer fake.end()
	c := hapaxtest.Start(fake, route(add(nil)))
	if err := c.Engine().Close(); err != nil {
		t.Fatal(err)
	}
	if got := fatal(fake, c.Wait); !strings.Contains(got, "has ended") {
		t.Errorf("the error: %s", got)
	}
}

func TestInvalidRouteFailsTheTest(t *testing.T) {
	fake := &fakeT{}
	defer fake.end()
	if got := fatal(fake, func() { hapaxtest.Start(fake, route(kafkaadapter.Transactional{})) }); !strings.Contains(got, "handler") {
		t.Errorf("the error: %s", got)
	}
}

// fatal returns the last error of a function that ends with Fatal.
func fatal(t *fakeT, f func()) (text string) {
	defer func() {
		if recover() != nil {
			text = t.errors[len(t.errors)-1]
		}
	}()
	f()
	return fmt.Sprint("no fatal error: ", t.errors)
}
