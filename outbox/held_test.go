package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/telemetry"
)

// sicken makes a partition of a topic unavailable until the fault is removed.
func sicken(t *testing.T, b *kafkatest.Broker, topic string, partition int32) *kfake.FaultHandle {
	t.Helper()
	return b.Cluster(t).Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{partition}, Err: kerr.NotLeaderForPartition, Count: -1,
	})
}

// A batch lasts for minutes unless it ends earlier: with one message of an unavailable partition in
// each, the others would not all be published within the patience of this test.
func TestUnavailablePartitionDoesNotHoldOthers(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	const sick, n, batch = 2, 1000, 50
	for how, o := range modes(t, b) {
		t.Run(how, func(t *testing.T) {
			topic := b.CreateTopic(t, 3, nil)
			fault := sicken(t, b, topic, sick)
			eng := openEngine(t, newMemDisk().open(t), nil)
			o.Batch = Batch{Entries: batch, Time: 4 * time.Minute}
			o.Lease = Lease{TTL: time.Hour, Margin: 10 * time.Minute}
			for i := range n {
				m := engine.Message{ID: fmt.Sprint(i), Topic: topic, Key: fmt.Append(nil, i), Partition: new(int32(i % 2))}
				if i%batch == 0 {
					m.Partition = new(int32(sick))
				}
				send(t, eng, m)
			}
			relay, stop := startRelay(t, eng, o)
			defer stop()
			until(t, "all messages of the other partitions", func() bool { return pending(t, eng) == n/batch })
			until(t, "a hold", relay.shared.holds.holding)
			relay.shared.holds.mu.Lock()
			if h := relay.shared.holds.all[partition{topic, sick}]; h.sent > 1 {
				t.Errorf("%d messages of the unavailable partition were sent, one in each batch", h.sent)
			}
			relay.shared.holds.mu.Unlock()
			for i := range 20 { // a message without a key may go to any partition
				send(t, eng, engine.Message{ID: fmt.Sprint("free", i), Topic: topic})
			}
			until(t, "messages without a key", func() bool { return pending(t, eng) == n/batch })
			fault.Remove()
			until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
			if lost, doubled := tally(n+20, readIDs(t, b, topic)); lost != 0 || doubled != 0 {
				t.Errorf("%d lost, %d doubled", lost, doubled)
			}
		})
	}
}

// messages sends messages of an ordering key to a topic.
func (r *rig) messages(topic, key string, from, to int) {
	r.t.Helper()
	for n := from; n < to; n++ {
		send(r.t, r.eng, engine.Message{ID: fmt.Sprint(topic, n), Topic: topic, Key: []byte(key)})
	}
}

// of returns the accepted records of a topic, in order.
func (b *fakeBroker) of(topic string) []string {
	return slices.DeleteFunc(b.ids(), func(id string) bool { return !strings.HasPrefix(id, topic) })
}

// untilHeld moves the clock until the topic is held.
func (r *rig) untilHeld(relay *Relay) {
	r.t.Helper()
	until(r.t, "a held topic", func() bool {
		r.clock.advance(silence)
		return relay.shared.holds.holding()
	})
}

// The messages that wait are not sent, so that each batch does not wait for them; when the partition
// answers they are, in order, although the clock does not move.
func TestMessagesOfAHeldPartitionAreNotSent(t *testing.T) {
	r := newRig(t)
	registry := prometheus.NewRegistry()
	relay := r.relay(Options{Batch: Batch{Entries: 10}, Telemetry: telemetry.Options{Registerer: registry, Logger: quiet().Logger}})
	r.broker.setHoldTopic("sick")
	r.messages("sick", "k", 0, 3)
	r.messages("out", "k", 0, 3)
	r.run(relay)
	r.broker.awaitHeld(1)
	r.untilHeld(relay)
	r.broker.await(t, 3)
	for n := 3; n < 30; n += 3 {
		r.messages("sick", fmt.Sprint("k", n), n, n+3)
		r.messages("out", fmt.Sprint("k", n), n, n+3)
		r.broker.await(t, n+3) // the clock does not move
	}
	wantIDs(t, r.broker.ids(), ids("out", 30)...)
	if n := r.broker.tried(); n != 31 {
		t.Errorf("%d messages were sent, want those of the other topic and one", n)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP dedup_outbox_held_partitions Partitions that do not answer, while others do: their messages wait.
# TYPE dedup_outbox_held_partitions gauge
dedup_outbox_held_partitions 1
`), "dedup_outbox_held_partitions"); err != nil {
		t.Error(err)
	}
	r.broker.setHoldTopic("")
	r.broker.release()
	r.drained()
	got := r.broker.of("sick")
	for n := range 30 {
		at := slices.Index(got, fmt.Sprint("sick", n))
		if n%3 > 0 && at < slices.Index(got, fmt.Sprint("sick", n-1)) {
			t.Errorf("message %d of a key overtakes the one before", n)
		}
	}
	slices.Sort(got)
	if len(slices.Compact(got)) != 30 || len(r.broker.of("sick")) != 30 {
		t.Errorf("published %q, want each of 30 once", r.broker.of("sick"))
	}
	if relay.shared.holds.holding() {
		t.Error("the topic is still held")
	}
}

// The client has chosen a silent partition for messages without a key, and would keep them forever.
// After Batch.Time they go to another one. Those with a key stay with the client.
func TestMessagesWithoutAKeyLeaveASilentPartition(t *testing.T) {
	for _, key := range [][]byte{nil, []byte("k")} {
		t.Run(fmt.Sprintf("key %q", key), func(t *testing.T) {
			r := newRig(t)
			relay := r.relay(Options{})
			r.broker.silent = func(ctx context.Context, rec *kgo.Record) bool {
				if rec.Topic != "two" {
					return false
				}
				number := int32(0)
				if _, held := relay.shared.holds.held(partition{"two", 0}); held && key == nil {
					number = 1
				}
				ctx.(*flight).number.Store(number)
				return number == 0
			}
			for n := range 3 {
				send(t, r.eng, engine.Message{ID: fmt.Sprint("two", n), Topic: "two", Key: key})
			}
			r.messages("out", "k", 0, 1)
			r.run(relay)
			r.untilHeld(relay)
			if key == nil {
				until(t, "messages without a key on the other partition", func() bool {
					r.clock.advance(silence)
					return pending(t, r.eng) == 0
				})
				if n := len(r.broker.of("two")); n != 3 {
					t.Errorf("%d messages were published, want 3", n)
				}
				return
			}
			for n := 1; n < 30; n++ {
				r.clock.advance(silence)
				r.messages("out", "k", n, n+1)
				r.broker.await(t, n+1)
			}
			if n := r.broker.tried(); n != 31 {
				t.Errorf("%d messages were sent, want the one that was left to the client once", n)
			}
		})
	}
}

// A process that ends while the client has messages publishes them when it runs again.
func TestMessagesThatWereLeftToTheClientAreNotLost(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{})
	r.broker.setHoldTopic("sick")
	r.messages("sick", "k", 0, 3)
	r.messages("out", "k", 0, 1)
	stop := r.run(relay)
	r.untilHeld(relay)
	until(t, "the end of the batch", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 3 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.broker.setHoldTopic("")
	r.run(r.relay(Options{}))
	r.drained()
	wantIDs(t, r.broker.of("sick"), "sick0", "sick1", "sick2")
}

// Run ends while a batch is in flight, in which the broker has acknowledged a message that an earlier
// batch had left to the client: it is not published again.
func TestMessageThatWasLeftAndAcknowledgedIsNotDoubledByTheEndOfRun(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{})
	r.broker.setHoldTopic("sick")
	r.messages("sick", "k", 0, 1)
	r.messages("out", "k", 0, 1)
	run, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(run) }()
	r.broker.awaitHeld(1)
	r.untilHeld(relay)
	until(t, "the end of the batch", func() bool { return len(entries(t, r.eng, entry.HeldPrefix)) == 1 && pending(t, r.eng) == 1 })
	r.broker.setHold(true)
	r.messages("out", "k", 1, 2)
	r.broker.awaitHeld(2) // the next batch is in flight
	cancel()
	r.broker.release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := pending(t, r.eng); n != 0 {
		t.Errorf("%d messages would be published again", n)
	}
	r.broker.setHold(false)
	r.broker.setHoldTopic("")
	r.run(r.relay(Options{}))
	r.drained()
	wantIDs(t, r.broker.of("sick"), "sick0")
}

// If nothing is answered, the broker cannot be reached, or only one partition was asked. Messages that
// have failed so do not delay others when they are tried again.
func TestRetryWithoutAnswersDoesNotHoldOthers(t *testing.T) {
	r := newRig(t)
	relay := r.relay(Options{Retry: Retry{Max: DefaultMinBackoff}})
	r.broker.setHoldTopic("sick")
	r.messages("sick", "k", 0, 1)
	r.run(relay)
	r.broker.awaitHeld(1)
	r.clock.advance(DefaultBatchTime)
	until(t, "a failed attempt", func() bool {
		held := entries(t, r.eng, entry.HeldPrefix)
		return len(held) == 1 && held[0].Attempts == 1
	})
	r.broker.release() // of the client that was closed
	r.messages("sick", "k", 1, 2)
	until(t, "another attempt", func() bool {
		r.clock.advance(DefaultMinBackoff / 4)
		return r.broker.tried() == 2
	})
	r.messages("out", "k", 0, 1)
	until(t, "the timers of the batch", func() bool { return r.clock.timed() == 3 })
	r.clock.advance(silence)
	until(t, "an idle relay", func() bool {
		return len(r.broker.of("out")) == 1 || relay.shared.holds.holding() && r.clock.timed() == 1
	})
	r.clock.advance(DefaultInterval) // the time until new messages are tried in what may be an outage
	until(t, "the other message", func() bool { return len(r.broker.of("out")) == 1 })
}

// A partition that was held by the exactly-once relay is tried again when its time has come, also if
// the clock was set back meanwhile. When it is silent again the next time is longer.
func TestHoldOfATransactionEnds(t *testing.T) {
	o, err := Options{Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var h holds
	p := partition{"t", 1}
	now := start.UnixMilli()
	before := time.Duration(0)
	for times := range 8 {
		wait := holdTime(&o, times)
		if wait > longestHold(&o) || times < 4 && wait <= before {
			t.Errorf("hold %d lasts %v, the one before %v", times, wait, before)
		}
		before = wait
		h.change(p, func(h *hold) { h.until, h.over = now+wait.Milliseconds(), false })
		for at, want := range map[int64]bool{now: true, now + wait.Milliseconds() - 1: true} {
			h.pass(at, longestHold(&o))
			if _, held := h.held(p); held != want {
				t.Errorf("hold %d of %v: held %v after %d ms", times, wait, held, at-now)
			}
		}
		h.pass(now+wait.Milliseconds(), longestHold(&o))
		if _, held := h.held(p); held {
			t.Errorf("hold %d of %v does not end", times, wait)
		}
	}
	h.change(p, func(h *hold) { h.until, h.over = now+holdTime(&o, 0).Milliseconds(), false })
	h.pass(now-time.Hour.Milliseconds(), longestHold(&o))
	if _, held := h.held(p); held {
		t.Error("it is held for an hour after the clock was set back")
	}
}

// The first message of an ordering key is of a held partition, the second of a topic that answers:
// others pass, but the second waits for the first.
func TestOrderingKeyAcrossTopicsWaitsForItsHeldMessage(t *testing.T) {
	b := kafkatest.Start(t, kafkatest.Options{})
	for how, o := range modes(t, b) {
		t.Run(how, func(t *testing.T) {
			sick, well := b.CreateTopic(t, 3, nil), b.CreateTopic(t, 3, nil)
			fault := sicken(t, b, sick, 0)
			eng := openEngine(t, newMemDisk().open(t), nil)
			o.Batch = Batch{Entries: 50, Time: 4 * time.Minute}
			o.Lease = Lease{TTL: time.Hour, Margin: 10 * time.Minute}
			relay, stop := startRelay(t, eng, o)
			defer stop()
			send(t, eng, engine.Message{ID: "sick", Topic: sick, Partition: new(int32(0))}, engine.Message{ID: "well", Topic: well})
			until(t, "a held partition", func() bool { return relay.shared.holds.holding() && pending(t, eng) == 1 })
			for n := range 3 {
				send(t, eng, engine.Message{ID: fmt.Sprint("first", n), Topic: sick, Partition: new(int32(0)), OrderingKey: fmt.Append(nil, n)},
					engine.Message{ID: fmt.Sprint("second", n), Topic: well, OrderingKey: fmt.Append(nil, n)},
					engine.Message{ID: fmt.Sprint("other", n), Topic: well, OrderingKey: fmt.Append(nil, n, "other")})
				until(t, "the others", func() bool { return pending(t, eng) <= 1+2*(n+1) })
			}
			published := readIDs(t, b, well)
			for n := range 3 {
				if id := fmt.Sprint("second", n); published[id] > 0 {
					t.Errorf("%s is published, the message before it is not", id)
				}
			}
			fault.Remove()
			until(t, "an empty outbox", func() bool { return pending(t, eng) == 0 })
		})
	}
}
