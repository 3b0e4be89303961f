package kafkaadapter

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

func TestDeadLetterHasTheOriginalBytes(t *testing.T) {
	r := newRig(t, 1)
	poison := r.event(0, "poison", kgo.RecordHeader{Key: "empty", Value: []byte{}}, kgo.RecordHeader{Key: "raw", Value: []byte("\x00\xff")})
	poison.Key, poison.Value = []byte("\x00k\xff"), nil
	r.Produce(t, r.event(0, "a"), poison, r.event(0, "b"))
	m := r.start(t, r.work(1, failing(Permanent(errHandler), "poison")))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 3)
	m.stop(t)
	if !reflect.DeepEqual(dead.Key, poison.Key) || len(dead.Value) != 0 || dead.Value != nil {
		t.Errorf("key %q, value %q", dead.Key, dead.Value)
	}
	for i, h := range poison.Headers {
		if got := dead.Headers[i]; got.Key != h.Key || string(got.Value) != string(h.Value) {
			t.Errorf("header %d is %v, want %v", i, got, h)
		}
	}
	got := values(dead)
	for name, want := range map[string]string{
		"hapax_dlt_original_topic": r.topic, "hapax_dlt_original_partition": "0", "hapax_dlt_original_offset": "1", "hapax_dlt_group": r.group, "hapax_dlt_scope": r.group,
		"hapax_dlt_reason": "permanent", "hapax_dlt_error": errHandler.Error(), "hapax_dlt_event_id": "poison",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// values are the headers by name.
func values(r *kgo.Record) map[string]string {
	all := map[string]string{}
	for _, h := range r.Headers {
		all[h.Key] = string(h.Value)
	}
	return all
}

// replay sends a dead letter back to its topic, as a tool does.
func (r *rig) replay(t *testing.T, dead *kgo.Record, times int) {
	t.Helper()
	for range times {
		r.Produce(t, &kgo.Record{Topic: r.topic, Key: dead.Key, Value: dead.Value, Headers: dead.Headers})
	}
}

func TestReplayOfADeadLetterIsHandledOnce(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "poison", "b")
	m := r.start(t, r.work(1, failing(errHandler, "poison")))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 3)
	m.stop(t)
	calls := len(r.handled())

	m = r.start(t, r.work(1, nil))
	r.send(t, 0, "poison") // an ordinary copy reopens nothing
	r.replay(t, dead, 3)
	r.untilStored(t, 0, 7)
	r.send(t, 0, "c")
	r.untilStored(t, 0, 8)
	m.counts(t, 1, "reopened_total")
	m.stop(t)
	again := r.handled()[calls:]
	if len(again) != 2 || again[0].id != "poison" || again[0].offset != 4 || !again[0].reopened || again[1].reopened {
		t.Errorf("handled %+v", again)
	}
	r.checkOnce(t, "a", "b", "c", "poison")
}

func TestForgedReplayReopensNothing(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "poison")
	m := r.start(t, r.work(1, failing(errHandler, "poison")))
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 2)
	set := func(name, value string) *kgo.Record {
		c := carrierOf(&kgo.Record{Headers: slices.Clone(dead.Headers)})
		c.Set(name, value)
		return &kgo.Record{Topic: r.topic, Key: dead.Key, Value: dead.Value, Headers: *c}
	}
	both := set("hapax_dlt_event_id", "a")
	carrierOf(both).Set("message_id", "a")
	r.Produce(t, both, set("hapax_dlt_generation", "1"), set("hapax_dlt_seal", strings.Repeat("00", 16)), set("hapax_dlt_scope", "another"))
	r.untilStored(t, 0, 6)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "poison"}) {
		t.Errorf("handled %q", got)
	}
}

func TestReplayThatFailsAgainIsADeadLetterAgain(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "poison")
	m := r.start(t, r.work(2, failing(errHandler, "poison")))
	r.replay(t, r.letters(t, 1)[0], 2)
	second := r.letters(t, 2)[1]
	r.untilStored(t, 0, 3)
	m.stop(t)
	if got := values(second); got["hapax_dlt_original_offset"] != "0" || got["hapax_dlt_generation"] == "0" {
		t.Errorf("the letter of the replay: %q", got)
	}
	if n := r.letterCount(t); n != 2 {
		t.Errorf("%d dead letters: the copy of the replay is a duplicate", n)
	}
	m = r.start(t, r.work(1, nil))
	r.replay(t, second, 1)
	r.untilStored(t, 0, 4)
	m.stop(t)
	r.checkOnce(t, "poison")
}

func TestPartitionStopsUntilTheDeadLetterIsPublished(t *testing.T) {
	r := newRig(t, 2)
	r.DeleteTopic(t, r.topic+"-dlt")
	ids := numbered("a", 10)
	r.send(t, 0, ids[:5]...)
	r.send(t, 0, "poison")
	r.send(t, 0, ids[5:]...)
	mode := r.work(1, failing(errHandler, "poison"))
	m := r.start(t, mode)
	e := m.stoppedOne(t)
	if e.Partition != 0 || e.Reason != "dead_letter" || !errors.Is(e, ErrDeadLetter) {
		t.Errorf("stopped: %v", e)
	}
	if all := m.Stopped(); len(all) != 1 || *all[0] != *e {
		t.Errorf("Stopped tells %v", all)
	}
	m.counts(t, 1, "partition_stopped", "0", "dead_letter")
	m.counts(t, 1, "stops_total", "dead_letter")
	r.send(t, 0, "later")
	r.send(t, 1, "other") // others continue
	r.untilStored(t, 1, 1)
	if n := r.stored(t, 0); n > 11 || slices.Contains(r.handledIDs(), "later") {
		t.Errorf("the store is at %d: another batch began before the broker acknowledged the letter", n)
	}
	m.stop(t) // the letter waits in the store

	m = r.start(t, mode)
	m.stoppedOne(t)
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	r.untilStored(t, 0, 12)
	kafkatest.Until(t, "the end of the stop", func() bool { return len(m.Stopped()) == 0 && m.metric(t, "partition_stopped") == 0 })
	m.counts(t, 1, "dead_letters_total", "attempts")
	m.stop(t)
	r.checkOnce(t, append(ids, "other", "later")...)
	if string(r.letters(t, 1)[0].Value) != "value-poison" || r.letterCount(t) != 1 {
		t.Errorf("%d dead letters", r.letterCount(t))
	}
	var order []string
	for _, x := range r.handled() {
		if x.partition == 0 {
			order = append(order, x.id)
		}
	}
	if want := slices.Concat(ids[:5], []string{"poison"}, ids[5:], []string{"later"}); !slices.Equal(order, want) {
		t.Errorf("order %q", order)
	}
	if r.get(t, append(letterKey(r.position(0)), 0, 0)) != nil {
		t.Error("the letter is still in the store")
	}
}

// Events that AtMostOnce has claimed do not wait for the broker, and are not lost if the process
// ends meanwhile.
func TestClaimedEventsDoNotWaitForADeadLetter(t *testing.T) {
	r := newRig(t, 1)
	r.DeleteTopic(t, r.topic+"-dlt")
	r.Produce(t, r.event(0, "a"), r.event(0, "b"), &kgo.Record{Topic: r.topic}, r.event(0, "c"))
	mode := AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		return nil
	})
	m := r.start(t, mode, withDeadLetters, func(o *Options) { o.Routes[0].Identify.NoPosition = true })
	if e := m.stoppedOne(t); e.Reason != "dead_letter" {
		t.Errorf("stopped: %v", e)
	}
	r.send(t, 0, "later")
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("handled %q while the dead letter waits", got)
	}
	r.CreateNamed(t, r.topic+"-dlt", 1, nil)
	kafkatest.Until(t, "later", func() bool { return len(r.handled()) == 4 })
	m.stop(t)
}

func TestDeadLettersGoToTheTopicOfTheOptions(t *testing.T) {
	r := newRig(t, 1)
	elsewhere := &deadletter.Options{Topic: func(topic string) string { return topic + "-dead" }, Headers: deadletter.Spring}
	r.CreateNamed(t, r.topic+"-dead", 1, nil)
	r.send(t, 0, "poison")
	m := r.start(t, r.work(1, failing(errHandler, "poison")), func(o *Options) { o.Routes[0].DeadLetters = elsewhere })
	dead := kafkatest.Consume(t, r.Client(t, kgo.ConsumeTopics(r.topic+"-dead"), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())), 1)[0]
	m.stop(t)
	if values(dead)["kafka_dlt-original-topic"] != r.topic {
		t.Errorf("headers %v", dead.Headers)
	}
}

func TestLargeDeadLetterIsPublished(t *testing.T) {
	const large = 6 << 20
	r := newRig(t, 1)
	big := r.event(0, "big")
	big.Topic = r.topic + "-big"
	r.CreateNamed(t, big.Topic, 1, map[string]string{"max.message.bytes": "10485760"})
	r.CreateNamed(t, big.Topic+"-dlt", 1, map[string]string{"max.message.bytes": "10485760"})
	big.Value = make([]byte, large)
	big.Value[large-1] = 7
	c := r.Client(t, kgo.ProducerBatchMaxBytes(10<<20))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.ProduceSync(ctx, big).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := r.start(t, r.work(1, failing(errHandler, "big")), func(o *Options) {
		o.Routes[0].Topics = []string{big.Topic}
		o.Client = append(o.Client, kgo.ProducerBatchMaxBytes(10<<20))
	})
	dead := kafkatest.Consume(t, r.Client(t, kgo.ConsumeTopics(big.Topic+"-dlt"), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())), 1)[0]
	m.stop(t)
	if len(dead.Value) != large || dead.Value[large-1] != 7 {
		t.Errorf("%d bytes", len(dead.Value))
	}
}

// A record that was not passed to a handler is used again: nothing of the earlier duplicate remains
// in it.
func TestDeadLetterWithoutAnEventHasNotThatOfAnother(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, append([]string{"a", "a"}, numbered("b", lookAhead-1)...)...)
	r.Produce(t, &kgo.Record{Topic: r.topic, Value: []byte("no id")})
	m := r.start(t, r.work(1, nil), func(o *Options) { o.Routes[0].Identify.NoPosition = true })
	got := values(r.letters(t, 1)[0])
	m.stop(t)
	if _, ok := got["hapax_dlt_event_id"]; ok || got["hapax_dlt_reason"] != "undecodable" {
		t.Errorf("dead letter %q", got)
	}
}

// A handler may leave little room in the transaction: then the dead letter gets a transaction of
// its own.
func TestDeadLetterThatDoesNotFitWaitsForTheNextBatch(t *testing.T) {
	r := newRig(t, 1)
	undecodable := &kgo.Record{Topic: r.topic, Value: make([]byte, 900<<10)}
	r.Produce(t, r.event(0, "a"), undecodable, r.event(0, "b"))
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) != "a" {
			return nil
		}
		for i := range 8 {
			if err := tx.Put([]byte{'x', byte(i)}, make([]byte, limits.ValueBytes-64<<10)); err != nil {
				return err
			}
		}
		return nil
	}), func(o *Options) { o.Routes[0].Identify.NoPosition = true })
	r.untilStored(t, 0, 3)
	dead := r.letters(t, 1)[0]
	m.stop(t)
	r.checkOnce(t, "a", "b")
	if got := values(dead); got["hapax_dlt_reason"] != "undecodable" || r.letterCount(t) != 1 {
		t.Errorf("dead letter %q", got)
	}
}
