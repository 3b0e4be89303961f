package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// The process is killed again and again while its partition waits for a service that is down: the
// record is not at fault.
func TestKillsDuringAWaitMakeNoDeadLetter(t *testing.T) {
	for _, where := range []string{"Handle", "HandleBatch", "Decode", "Payload"} {
		t.Run(where, func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a", "b", "c")
			var away atomic.Bool
			away.Store(true)
			r.died(t, 0)
			for range 4 { // each time
				m := r.start(t, waiting(r, where, &away), func(o *Options) {
					if where == "Payload" {
						o.Routes[0].Identify.Payload = payloadID(&away)
					}
				})
				if e := m.stoppedOne(t); e.Reason != "transient" {
					t.Errorf("stopped: %v", e)
				}
				killed := r.mem.Crash()
				m.cancel()
				kafkatest.Receive(t, m.done)
				r.open(t, killed)
			}
			away.Store(false)
			m := r.start(t, waiting(r, where, &away))
			r.untilStored(t, 0, 3)
			m.stop(t)
			r.checkOnce(t, "a", "b", "c")
			if n := r.letterCount(t); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

// waiting is a mode of which one function needs a service that is away.
func waiting(r *rig, where string, away *atomic.Bool) Transactional {
	down := func(fn string) error {
		if where == fn && away.Load() {
			return Transient(errAway)
		}
		return nil
	}
	if where == "HandleBatch" {
		mode, _ := r.groups(3, func([]string) error { return down("HandleBatch") })
		return mode
	}
	mode := r.work(3, func(context.Context, *engine.Tx, *Record) error { return down("Handle") })
	mode.Decode = func(context.Context, *kgo.Record) (any, error) { return nil, down("Decode") }
	return mode
}

// checkNoAttempt waits until the store has no attempt at a record.
func checkNoAttempt(t *testing.T, r *rig) {
	t.Helper()
	kafkatest.Until(t, "the end of the attempt", func() bool { return r.attemptsAt(t, 0) == owner.Attempts{} })
}

// After an unclean end, an attempt at the next record is stored with the batch before. If the
// application pauses the partition there, the attempt has not begun.
func TestPauseIsNoAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	r.died(t, 0)
	started := make(chan *member, 1)
	m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == "a" {
			m := <-started
			return m.Pause(r.topic)
		}
		return nil
	}))
	started <- m
	r.untilStored(t, 0, 1)
	checkNoAttempt(t, r)
	if err := m.Resume(r.topic); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 2)
	m.stop(t)
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	r.checkOnce(t, "a", "b")
}

// While another transaction holds the event, its handler does not run.
func TestWaitForAnotherTransactionIsNoAttemptInTheStore(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	r.died(t, 0)
	at := kafkatest.Consume(t, r.Client(t, kgoFrom(r.topic)...), 1)[0].Timestamp
	err := r.eng.Update(context.Background(), func(tx *engine.Tx) error {
		if res, err := tx.TryClaim(engine.Event{Scope: r.group, ID: []byte("a"), Time: at, Origin: engine.Origin{Topic: "elsewhere"}}); err != nil || !res.IsClaimed() {
			t.Errorf("%v, %v", res.Verdict, err)
		}
		m := r.start(t, r.work(3, nil))
		kafkatest.Until(t, "some rounds", func() bool { return m.rounds(t, r.topic) >= 3 })
		checkNoAttempt(t, r)
		return errHandler
	})
	if !errors.Is(err, errHandler) {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 1)
	r.checkOnce(t, "a")
}

// A batch that is in conflict waits before it is tried again.
func TestWaitAfterAConflictIsNoAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	r.died(t, 0)
	var conflicts, quiet atomic.Int32
	m := r.start(t, Transactional{MaxAttempts: 1, Handle: func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if _, _, err := tx.Get([]byte("balance")); err != nil {
			return err
		}
		if quiet.Load() == 0 {
			r.put(t, "balance", []byte{byte(conflicts.Add(1))})
		}
		_, _, err := tx.Get([]byte("balance"))
		return errors.Join(err, count(tx, string(rec.Event.ID)))
	}})
	kafkatest.Until(t, "some conflicts", func() bool { return conflicts.Load() > 20 })
	checkNoAttempt(t, r)
	quiet.Store(1)
	r.untilStored(t, 0, 1)
	m.stop(t)
	r.checkOnce(t, "a")
}

// While other partitions have their turn, the handler does not run, although the batch before has stored an
// attempt.
func TestWaitForATurnIsNoAttempt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	r.died(t, 0)
	other := driver.JoinLane(r.eng, time.Hour)
	held, let, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	runs := 0
	m := r.start(t, Transactional{MaxAttempts: 1, Handle: func(_ context.Context, tx *engine.Tx, rec *Record) error {
		_, _, err := tx.Get([]byte("met"))
		switch runs++; runs {
		case 1: // the partition and the other member conflict, and take turns from now on
			err = errors.Join(err, driver.Update(context.Background(), r.eng, func(tx *engine.Tx) error {
				return tx.Put([]byte("met"), []byte("by another"))
			}, driver.UpdateOptions{Lane: other}))
		case 2: // the other member has the next turn
			queued := make(chan struct{})
			go func() {
				done <- driver.Update(context.Background(), r.eng, func(*engine.Tx) error {
					close(held)
					<-let
					return nil
				}, driver.UpdateOptions{Lane: other, OnPrefetched: func([]bool) { close(queued) }})
			}()
			kafkatest.Receive(t, queued)
			kafkatest.Until(t, "the other member's place in the queue", other.Serialized)
		}
		return errors.Join(err, count(tx, string(rec.Event.ID)))
	}})
	kafkatest.Receive(t, held)
	r.untilStored(t, 0, 1)
	checkNoAttempt(t, r)
	close(let)
	if err := kafkatest.Receive(t, done); err != nil {
		t.Fatal(err)
	}
	r.untilStored(t, 0, 2)
	m.stop(t)
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	r.checkOnce(t, "a", "b")
}

// A handler that has failed for good counts, although the partition waits before the next attempt.
func TestFailedAttemptCountsDuringThePauseAfterIt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	r.died(t, 0)
	m := r.start(t, r.work(3, failing(errHandler, "a")), func(o *Options) { o.backoff.Min, o.backoff.Max = time.Hour, time.Hour })
	kafkatest.Until(t, "an attempt", func() bool {
		return r.attemptsAt(t, 0).N == 1 && len(r.handled()) == 1 && m.metric(t, "failed_attempts_total") == 1
	})
	killed := r.mem.Crash()
	m.cancel()
	kafkatest.Receive(t, m.done)
	r.open(t, killed)
	m = r.start(t, r.work(3, failing(errHandler, "a")))
	r.untilStored(t, 0, 1)
	m.stop(t)
	var tries []int
	for _, x := range r.handled() {
		tries = append(tries, x.attempt)
	}
	if !slices.Equal(tries, []int{1, 2, 3}) {
		t.Errorf("attempts %v", tries)
	}
}
