package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/telemetry"
)

func parkedIDs(t testing.TB, r *Relay) (ids []string) {
	t.Helper()
	for m, err := range r.Parked(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return ids
}

// backOff ends the backoffs one after the other until the condition holds.
func (r *rig) backOff(what string, condition func() bool) {
	r.t.Helper()
	until(r.t, what, func() bool {
		if condition() {
			return true
		}
		if r.clock.waiting() {
			r.clock.next()
		}
		return false
	})
}

func TestRejectedMessageIsParkedAndRedriven(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
		if strings.HasPrefix(idOf(rec), "bad") {
			return kerr.InvalidRecord
		}
		return nil
	})
	relay := r.relay(Options{Retry: Retry{Attempts: 3}})
	r.produce("bad1@k", "good1@k", "bad2", "bad3")
	r.run(relay)
	r.backOff("three parked messages", func() bool { return len(parkedIDs(t, relay)) == 3 })
	r.backOff("the parked message does not hold back good1", func() bool { return slices.Contains(r.broker.ids(), "good1") })
	for m, err := range relay.Parked(ctx) {
		if err != nil || m.Attempts != 3 || m.LastError != kerr.InvalidRecord.Error() || m.Topic != "out" || string(m.Value) != m.ID {
			t.Errorf("%+v %v", m, err)
		}
	}
	if err := relay.Redrive(ctx, "good1"); !errors.Is(err, ErrNotParked) {
		t.Error(err)
	}
	r.broker.setAnswer(nil)
	if err := relay.Drop(ctx, "bad3"); err != nil {
		t.Fatal(err)
	}
	if err := relay.Redrive(ctx, "bad2"); err != nil {
		t.Fatal(err)
	}
	until(t, "bad2", func() bool { return slices.Contains(r.broker.ids(), "bad2") })
	if n, err := relay.RedriveAll(ctx); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	until(t, "bad1", func() bool { return slices.Contains(r.broker.ids(), "bad1") })
	r.drained()
	if ids := parkedIDs(t, relay); len(ids) != 0 || slices.Contains(r.broker.ids(), "bad3") {
		t.Errorf("parked %q, published %q", ids, r.broker.ids())
	}
	f, err := relay.shared.figures(ctx)
	if err != nil || f.pending != 0 || f.due != 0 || f.parked != 0 {
		t.Errorf("%+v %v", f, err)
	}
}

func TestRedriveAllKeepsTheOrderOfAKey(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
	relay := r.relay(Options{Retry: Retry{Attempts: 1}})
	r.produce("third by id@k", "first@k", "second@k")
	stop := r.run(relay)
	until(t, "parked messages", func() bool { return len(parkedIDs(t, relay)) == 3 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.broker.setAnswer(nil)
	if n, err := relay.RedriveAll(ctx); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	r.run(r.relay(Options{}))
	r.broker.await(t, 3)
	wantIDs(t, r.broker.ids(), "third by id", "first", "second")
}

func TestOutageParksNothingAndDoesNotHotLoop(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errDown })
	relay := r.relay(Options{Retry: Retry{Min: time.Second, Max: time.Minute, Attempts: 2}, Batch: Batch{Entries: 10}})
	r.produce(ids("m", 40)...)
	r.run(relay)
	began := r.clock.Now()
	for r.clock.Now().Sub(began) < 20*time.Minute {
		until(t, "the relay waits", r.clock.waiting)
		r.clock.next()
	}
	if n := len(parkedIDs(t, relay)); n != 0 {
		t.Errorf("%d messages are parked", n)
	}
	// 40 messages, each tried at most every half a minute at the end, are 1,600 attempts and some
	// at the beginning.
	if n := r.broker.tried(); n > 2_000 {
		t.Errorf("%d attempts in 20 minutes", n)
	}
	attempts := entries(t, r.eng, entry.HeldPrefix)[0].Attempts
	if attempts < 5 {
		t.Errorf("a message was tried %d times in 20 minutes", attempts)
	}
	r.broker.setAnswer(nil)
	r.backOff("all are published", func() bool { return len(r.broker.ids()) == 40 })
}

// A timerCount counts the timers that have fired when they are set.
type timerCount struct {
	*fakeClock
	fired atomic.Int64
}

func (c *timerCount) After(d time.Duration) (<-chan time.Time, func()) {
	if d <= 0 {
		c.fired.Add(1)
	}
	return c.fakeClock.After(d)
}

func TestDueMessageDoesNotHotLoopInAnOutage(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errDown })
	relay := r.relay(Options{Retry: Retry{Min: time.Minute}, Interval: time.Second})
	clock := &timerCount{fakeClock: r.clock}
	relay.shared.opt.Clock = clock
	r.produce("now")
	r.produceDue(r.clock.Now().Add(3*time.Second), "later")
	r.run(relay)
	until(t, "the first attempt", func() bool { return r.broker.tried() == 1 })
	for range 5 {
		until(t, "the relay waits", func() bool { return r.clock.waiting() || clock.fired.Load() > 100 })
		r.clock.advance(time.Second)
	}
	if n := clock.fired.Load(); n > 100 {
		t.Fatal("the relay does not wait for the end of the backoff")
	}
	r.broker.setAnswer(nil)
	r.backOff("both are published", func() bool { return len(r.broker.ids()) == 2 })
}

func TestOutageHoldsOnlyTriedMessages(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errDown })
	r.produce(ids("m", 300)...)
	r.run(r.relay(Options{Batch: Batch{Entries: 50}, Retry: Retry{Min: time.Minute}}))
	until(t, "messages in backoff", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) > 0 })
	until(t, "the relay waits", r.clock.waiting)
	if n := len(entries(t, r.eng, entry.HeldPrefix)); n != 50 || r.broker.tried() != 50 {
		t.Errorf("%d messages are in backoff after %d attempts: the first batch has 50", n, r.broker.tried())
	}
}

// A topic whose broker is down looks like an outage of all.
func TestUnreachableTopicDelaysOthersForAnIntervalOnly(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
		if idOf(rec) == "down" {
			return errDown
		}
		return nil
	})
	r.produce("down@k")
	r.run(r.relay(Options{Retry: Retry{Min: 5 * time.Minute}}))
	until(t, "a held message", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 1 })
	until(t, "the relay waits", r.clock.waiting)
	began := r.clock.Now()
	r.produce("1", "2@other")
	r.backOff("the others", func() bool { return len(r.broker.ids()) == 2 })
	if waited := r.clock.Now().Sub(began); waited > 2*DefaultInterval {
		t.Errorf("messages of other topics have waited for %v", waited)
	}
}

func TestAttemptsAndBackoffSurviveARestart(t *testing.T) {
	r := newRig(t)
	r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
	relay := r.relay(Options{Retry: Retry{Min: time.Hour}})
	r.produce("a@k", "b@k")
	stop := r.run(relay)
	until(t, "held messages", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.eng = openEngine(t, r.mem.CrashClone(0), r.clock)
	r.broker.setAnswer(nil)
	r.run(r.relay(Options{Retry: Retry{Min: time.Hour}}))
	r.produce("c@k", "other")
	r.broker.await(t, 1)
	until(t, "c behind a and b", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 3 })
	held := entries(t, r.eng, entry.HeldPrefix)
	if held[0].ID != "a" || held[0].Attempts != 1 || held[0].LastError != errBad.Error() || held[0].NotBefore != start.Add(time.Hour).UnixMilli() {
		t.Errorf("%+v", held[0])
	}
	r.backOff("all of them", func() bool { return len(r.broker.ids()) == 4 })
	wantIDs(t, r.broker.ids(), "other", "a", "b", "c")
	if waited := r.clock.Now().Sub(start); waited < time.Hour {
		t.Errorf("a was tried again after %v", waited)
	}
}

// Messages that fail while the clock is ahead have backoffs that end far in the future when it is set
// back.
func TestBackoffIsBoundedAfterTheClockWasSetBack(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			r := newRig(t)
			r.broker.setAnswer(func(*kgo.Record, int) error { return errBad })
			r.clock.advance(100 * time.Hour)
			r.produce("a@k", "b@k", "c")
			stop := r.run(r.relay(Options{}))
			until(t, "held messages", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 3 })
			if restart {
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the relay waits", func() bool { return restart || r.clock.waiting() })
			r.clock.setBack(100 * time.Hour)
			r.broker.setAnswer(nil)
			if restart {
				r.run(r.relay(Options{}))
			}
			began := r.clock.Now()
			late := func() bool { return r.clock.Now().Sub(began) > DefaultMaxBackoff+DefaultInterval }
			r.backOff("all of them", func() bool { return len(r.broker.ids()) == 3 || late() })
			if late() {
				t.Errorf("after %v, the longest backoff is %v: %q", r.clock.Now().Sub(began), DefaultMaxBackoff, r.broker.ids())
			}
		})
	}
}

func TestUnansweredBatchFailsAfterItsTime(t *testing.T) {
	r := newRig(t)
	r.broker.setHold(true)
	relay := r.relay(Options{})
	r.produce("a@k", "b@k")
	r.run(relay)
	r.broker.awaitHeld(1)
	r.clock.advance(DefaultBatchTime)
	until(t, "held messages", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 2 })
	held := entries(t, r.eng, entry.HeldPrefix)
	if held[0].Attempts != 1 || held[0].Refused != 0 || held[1].Attempts != 0 {
		t.Errorf("%+v", held)
	}
	r.broker.setHold(false)
	r.backOff("a and b", func() bool { return len(r.broker.ids()) == 2 })
	wantIDs(t, r.broker.ids(), "a", "b")
}

func TestFiguresOfTheOutbox(t *testing.T) {
	r := newRig(t)
	registry := prometheus.NewPedanticRegistry()
	relay := r.relay(Options{Telemetry: telemetry.Options{Registerer: registry, Logger: quiet().Logger}, Retry: Retry{Attempts: 1}})
	r.produce("bad", "b")
	r.produceDue(r.clock.Now().Add(time.Minute), "soon")
	r.produceDue(r.clock.Now().Add(time.Hour), "later")
	r.clock.advance(2 * time.Minute)
	want := func(text string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "dedup_outbox_pending_messages", "dedup_outbox_due_messages",
			"dedup_outbox_oldest_due_age_seconds", "dedup_outbox_parked_messages", "dedup_outbox_sent_total", "dedup_outbox_failed_total"); err != nil {
			t.Error(err)
		}
	}
	metrics := func(pending, due, age, parked, sent, failed int) string {
		var b strings.Builder
		for _, m := range []struct {
			name, kind, help string
			v                int
		}{
			{"due_messages", "gauge", "Pending messages whose due time has come.", due},
			{"failed_total", "counter", "Failed attempts to publish a message.", failed},
			{"oldest_due_age_seconds", "gauge", "Time since the oldest pending message was due; 0 if none is due.", age},
			{"parked_messages", "gauge", "Messages parked after repeated rejections.", parked},
			{"pending_messages", "gauge", "Messages in the outbox that are not parked.", pending},
			{"sent_total", "counter", "Messages that the broker has acknowledged.", sent},
		} {
			fmt.Fprintf(&b, "# HELP dedup_outbox_%[1]s %[3]s\n# TYPE dedup_outbox_%[1]s %[2]s\ndedup_outbox_%[1]s %[4]d\n", m.name, m.kind, m.help, m.v)
		}
		return b.String()
	}
	want(metrics(4, 3, 120, 0, 0, 0))
	r.broker.setAnswer(func(rec *kgo.Record, _ int) error {
		if idOf(rec) == "bad" {
			return errBad
		}
		return nil
	})
	r.run(relay)
	until(t, "one message that is due later", func() bool { return pending(t, r.eng) == 1 })
	until(t, "figures", func() bool { return testutil.ToFloat64(relay.shared.metrics.failed) == 1 })
	want(metrics(1, 0, 0, 1, 2, 1))
	relay.Close()
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Error(n, err)
	}
}

func TestDisabledRelayKeepsMessages(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{Disabled: true})
	stop := r.run(relay)
	r.produce("a")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if pending(t, r.eng) != 1 || r.broker.tried() != 0 {
		t.Error("published by a disabled relay")
	}
	if err := relay.Run(ctx); !errors.Is(err, ErrAlreadyRan) {
		t.Error(err)
	}
}

func TestRunEndsWithTheEngine(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{})
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	r.produce("a")
	r.broker.await(t, 1)
	r.drained()
	r.mem.Fail(errBad)
	_ = r.eng.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) })
	relay.Wake()
	if err := <-done; !errors.Is(err, engine.ErrStopped) || !errors.Is(err, errBad) {
		t.Error(err)
	}
}

// A failingClock calls fail the first time that it is read.
type failingClock struct {
	*fakeClock
	fail func()
}

func (c *failingClock) Now() time.Time {
	if fail := c.fail; fail != nil {
		c.fail = nil
		fail()
	}
	return c.fakeClock.Now()
}

func TestRunReturnsTheErrorOfAnEngineThatFailsBetweenItsCalls(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{})
	r.produceDue(r.clock.Now().Add(time.Hour), "later")
	relay.shared.opt.Clock = &failingClock{r.clock, func() {
		r.mem.Fail(errBad)
		_ = r.eng.Update(ctx, func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) })
	}}
	if err := relay.Run(ctx); !errors.Is(err, engine.ErrStopped) || !errors.Is(err, errBad) {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	r := newRig(t)
	client := []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}
	for field, o := range map[string]Options{
		"Client is empty":  {},
		"ProgressTopic":    {Client: client, ExactlyOnce: &ExactlyOnce{}},
		"Interval":         {Client: client, Interval: -1},
		"Batch.Entries":    {Client: client, Batch: Batch{Entries: MaxBatchEntries + 1}},
		"Batch.Bytes":      {Client: client, Batch: Batch{Bytes: MaxBatchBytes + 1}},
		"Batch.Time":       {Client: client, Batch: Batch{Time: 21 * time.Second}},
		"Lease":            {Client: client, Lease: Lease{TTL: time.Second, Margin: time.Second}},
		"Retry has":        {Client: client, Retry: Retry{Min: time.Hour, Max: time.Second}},
		"Retry.Attempts":   {Client: client, Retry: Retry{Attempts: -1}},
		"Options.Client: ": {Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), kgo.MaxBufferedBytes(-1), kgo.ProducerBatchMaxBytes(1)}},
		"ManualFlushing":   {Client: append(client[:1:1], kgo.ManualFlushing())},
		"TopicAlways":      {Client: append(client[:1:1], kgo.DefaultProduceTopic("x"), kgo.DefaultProduceTopicAlways())},
	} {
		if _, err := New(r.eng, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestClientOptionsOfAConsumerAndOfTransactionsAreRejected(t *testing.T) {
	r := newRig(t)
	for name, o := range map[string]kgo.Opt{
		"TransactionalID":   kgo.TransactionalID("x"),
		"ConsumerGroup":     kgo.ConsumerGroup("x"),
		"ShareGroup":        kgo.ShareGroup("x"),
		"ConsumeTopics":     kgo.ConsumeTopics("x"),
		"ConsumePartitions": kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"x": {0: kgo.NewOffset()}}),
	} {
		for _, once := range []*ExactlyOnce{nil, {ProgressTopic: "progress"}} {
			_, err := New(r.eng, Options{Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), o}, ExactlyOnce: once})
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, exactly once %v: %v", name, once != nil, err)
			}
		}
	}
}

func TestDelaysGrowAndAreBounded(t *testing.T) {
	r := Retry{Min: time.Second, Max: time.Minute}
	seen := map[time.Duration]bool{}
	for n := range uint64(100) {
		d := r.delay(n)
		if d < r.Min || d > r.Max {
			t.Errorf("after %d failures %v", n, d)
		}
		if n > 10 && d < r.Max/2 {
			t.Errorf("after %d failures only %v", n, d)
		}
		seen[r.delay(4)] = true
	}
	if len(seen) < 50 {
		t.Errorf("%d different delays of 100: there is no jitter", len(seen))
	}
}
