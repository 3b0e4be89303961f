package kafkaadapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// A handler passes its record to the client to forward it. The client writes the topic, the
// partition, the offset and the time of the copy into it, or the offset -1 if it fails.
func TestForwardedRecordsAreAllHandled(t *testing.T) {
	for name, mode := range map[string]func(forward func(context.Context, *Record) error) (Mode, Concurrency){
		"Handle": func(f func(context.Context, *Record) error) (Mode, Concurrency) {
			return Transactional{MaxAttempts: 1, Handle: func(ctx context.Context, _ *engine.Tx, rec *Record) error { return f(ctx, rec) }}, Concurrency{}
		},
		"parallel": func(f func(context.Context, *Record) error) (Mode, Concurrency) {
			return Transactional{MaxAttempts: 1, Handle: func(ctx context.Context, _ *engine.Tx, rec *Record) error { return f(ctx, rec) }}, Concurrency{handlers: 4}
		},
		"HandleBatch": func(f func(context.Context, *Record) error) (Mode, Concurrency) {
			return Transactional{MaxAttempts: 1, HandleBatch: func(ctx context.Context, _ *engine.Tx, recs []*Record) error {
				for _, rec := range recs {
					if err := f(ctx, rec); err != nil {
						return err
					}
				}
				return nil
			}}, Concurrency{}
		},
		"AtMostOnce": func(f func(context.Context, *Record) error) (Mode, Concurrency) { return AtMostOnce(f), Concurrency{} },
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/fails=%t", name, fails), func(t *testing.T) {
				r := newRig(t, 1)
				other := r.CreateTopic(t, 1, nil)
				r.Produce(t, kafkatest.Records(other, 1, 1000, 10)...) // its offsets are ahead
				ids := numbered("e", 33)
				r.send(t, 0, ids...)
				client := r.Client(t)
				work, parallel := mode(func(ctx context.Context, rec *Record) error {
					r.note(ctx, rec)
					if fails {
						gone, cancel := context.WithCancel(ctx)
						cancel()
						client.ProduceSync(gone, rec.Record)
						return nil
					}
					rec.Topic = other
					return client.ProduceSync(ctx, rec.Record).FirstErr()
				})
				m := r.start(t, work, func(o *Options) { o.Routes[0].Concurrency = parallel })
				r.untilStored(t, 0, 33)
				r.untilHandled(t, 33)
				m.stop(t)
				got := r.handledIDs()
				if slices.Sort(got); len(slices.Compact(got)) != 33 {
					t.Errorf("handled %q", r.handledIDs())
				}
				if n := r.stored(t, 0); n != 33 {
					t.Errorf("the store is at %d", n)
				}
			})
		}
	}
}

// wreck overwrites all that is in a record.
func wreck(rec *kgo.Record) {
	fill(rec.Key)
	fill(rec.Value)
	for i := range rec.Headers {
		fill(rec.Headers[i].Value)
		rec.Headers[i] = kgo.RecordHeader{Key: "message_id", Value: []byte("wrecked")}
	}
	rec.Headers = append(rec.Headers[:0], kgo.RecordHeader{Key: "message_id", Value: []byte("wrecked")})
	*rec = kgo.Record{Topic: "wrecked", Partition: 77, Offset: -1, LeaderEpoch: 77, Headers: rec.Headers}
}

// fill overwrites memory, also that between the length and the capacity.
func fill(b []byte) {
	for i := range b[:cap(b)] {
		b[:cap(b)][i] = '!'
	}
}

// wreckAll overwrites all that a handler gets.
func wreckAll(rec *Record) {
	wreck(rec.Record)
	fill(rec.Event.ID)
	*rec = Record{Event: engine.Event{Scope: "wrecked", ID: []byte("wrecked")}, Verdict: engine.Duplicate, Attempt: 77, Reopened: true}
}

// A vandal wrecks everything that one of the application's functions gets, after it has checked
// that it gets what was sent.
type vandal struct {
	*rig
	where string
	large []byte // the value of "large"

	mu    sync.Mutex
	tries map[string][]int // the attempts of handlers, by id
}

// check fails the test if a record is not the one that was sent.
func (v *vandal) check(t *testing.T, rec *kgo.Record) (id string) {
	for _, h := range rec.Headers {
		if h.Key == "message_id" {
			id = string(h.Value)
		}
	}
	want := "value-" + id
	if id == "large" {
		want = string(v.large)
	}
	if string(rec.Value) != want || string(rec.Key) != "key-"+id || rec.Topic != v.topic || rec.Partition != 0 || rec.Offset < 0 || rec.Timestamp.IsZero() {
		t.Errorf("%s got %q: %.50q of %s/%d@%d at %v", v.where, rec.Key, rec.Value, rec.Topic, rec.Partition, rec.Offset, rec.Timestamp)
	}
	return id
}

func (v *vandal) payload(t *testing.T) func(rec *kgo.Record) ([]byte, time.Time, error) {
	if v.where != "Payload" {
		return nil
	}
	return func(rec *kgo.Record) ([]byte, time.Time, error) {
		id := []byte(v.check(t, rec))
		wreck(rec)
		return id, time.Time{}, nil
	}
}

func (v *vandal) fingerprint(t *testing.T) func(*kgo.Record) []byte {
	if v.where != "Fingerprint" {
		return nil
	}
	return func(rec *kgo.Record) []byte {
		v.check(t, rec)
		wreck(rec)
		return []byte("same")
	}
}

func (v *vandal) decode(t *testing.T) func(context.Context, *kgo.Record) (any, error) {
	if v.where != "Decode" {
		return nil
	}
	return func(_ context.Context, rec *kgo.Record) (any, error) {
		id := v.check(t, rec)
		wreck(rec)
		return id, nil
	}
}

func (v *vandal) key(t *testing.T) func(*Record) []byte {
	if v.where != "Key" {
		return nil
	}
	return func(rec *Record) []byte {
		key := bytes.Clone(rec.Key)
		v.check(t, rec.Record)
		wreckAll(rec)
		return key
	}
}

// handle notes an attempt, and fails at the first of "once" and at all of "poison".
func (v *vandal) handle(t *testing.T, rec *Record) error {
	id := string(rec.Event.ID)
	if rec.Verdict != engine.Claimed || rec.Reopened || rec.Event.Origin != (engine.Origin{Topic: v.topic, Offset: rec.Event.Origin.Offset}) {
		t.Errorf("%s got %+v", v.where, rec)
	}
	if v.where != "Decode" && v.where != "Key" { // they have wrecked the attempt's copy
		if got := v.check(t, rec.Record); got != id || rec.Offset != rec.Event.Origin.Offset {
			t.Errorf("%s got the record of %q with %+v", v.where, got, rec.Event)
		}
	}
	v.mu.Lock()
	v.tries[id] = append(v.tries[id], rec.Attempt)
	n := len(v.tries[id])
	v.mu.Unlock()
	if rec.Record != nil {
		wreckAll(rec)
	}
	if id == "poison" || id == "once" && n == 1 {
		return errHandler
	}
	return nil
}

func (v *vandal) handleBatch(t *testing.T, recs []*Record) (err error) {
	var at int
	for i, rec := range recs {
		if failed := v.handle(t, rec); failed != nil && err == nil {
			at, err = i, failed
		}
	}
	slices.Reverse(recs)
	clear(recs)
	return FailedAt(at, err)
}

func (v *vandal) mode(t *testing.T) Mode {
	if v.where == "HandleBatch" {
		return Transactional{MaxAttempts: 3, HandleBatch: func(_ context.Context, _ *engine.Tx, recs []*Record) error { return v.handleBatch(t, recs) }}
	}
	return Transactional{MaxAttempts: 3, Decode: v.decode(t), Handle: func(_ context.Context, _ *engine.Tx, rec *Record) error { return v.handle(t, rec) }}
}

// An application's function overwrites whatever it gets, down to the last byte: each attempt
// still gets the record that was sent, the dead letter is that record, and claims, attempts and
// offsets are those of the records.
func TestFunctionsOfTheApplicationMayOverwriteWhatTheyGet(t *testing.T) {
	for _, where := range []string{"Handle", "HandleBatch", "Decode", "Payload", "Fingerprint", "Key", "parallel"} {
		t.Run(where, func(t *testing.T) {
			v := &vandal{rig: newRig(t, 1), where: where, tries: make(map[string][]int), large: bytes.Repeat([]byte("large"), 50_000)}
			ids := slices.Concat(numbered("a", 40), []string{"once", "large", "poison"}, numbered("b", 40))
			v.sendAll(t, ids)
			m := v.start(t, v.mode(t), func(o *Options) {
				o.Routes[0].Identify.Payload, o.Routes[0].Fingerprint = v.payload(t), v.fingerprint(t)
				if where == "Fingerprint" {
					o.Routes[0].Policies[Mismatch] = DeadLetter
				}
				if where == "parallel" || where == "Key" {
					o.Routes[0].Concurrency = Concurrency{handlers: 4, key: v.key(t)}
				}
			})
			v.untilStored(t, 0, int64(len(ids)))
			dead := v.letters(t, 1)[0]
			v.sendAll(t, ids) // all are duplicates
			v.untilStored(t, 0, 2*int64(len(ids)))
			m.stop(t)
			v.checkTries(t, ids)
			v.checkLetter(t, dead)
			if n := v.letterCount(t); n != 1 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

func (v *vandal) sendAll(t *testing.T, ids []string) {
	t.Helper()
	sent := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		if sent[i] = v.event(0, id, kgo.RecordHeader{Key: "more", Value: []byte("header")}); id == "large" {
			sent[i].Value = v.large
		}
	}
	v.Produce(t, sent...)
}

func (v *vandal) checkTries(t *testing.T, ids []string) {
	t.Helper()
	if len(v.tries) != len(ids) {
		t.Errorf("%d events were handled, want %d", len(v.tries), len(ids))
	}
	for _, id := range ids {
		got := v.tries[id]
		switch {
		case id == "poison" && (len(got) < 3 || got[len(got)-1] != 3),
			id == "once" && (len(got) < 2 || got[len(got)-1] != 2),
			id != "poison" && id != "once" && (len(got) == 0 || slices.Max(got) != 1): // a batch may run again
			t.Errorf("the attempts of %s are %v", id, got)
		}
	}
}

func (v *vandal) checkLetter(t *testing.T, dead *kgo.Record) {
	t.Helper()
	want := map[string]string{
		"message_id": "poison", "more": "header", "hapax_dlt_event_id": "poison", "hapax_dlt_attempts": "3", "hapax_dlt_original_topic": v.topic,
		"hapax_dlt_original_partition": "0", "hapax_dlt_original_offset": "42", "hapax_dlt_error": errHandler.Error(),
	}
	got := values(dead)
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("header %s of the dead letter is %q, want %q", name, got[name], want[name])
		}
	}
	if string(dead.Key) != "key-poison" || string(dead.Value) != "value-poison" {
		t.Errorf("the dead letter has key %q and value %q", dead.Key, dead.Value)
	}
}

// The claims of AtMostOnce whose handlers have not begun are withdrawn by their own ids and
// offsets, whatever Concurrency.key and the handlers that ran have overwritten.
func TestWithdrawnClaimsAreThoseOfTheRecords(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("e", 30)
	r.send(t, 0, ids...)
	var m *member
	started := make(chan struct{})
	m = r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
		<-started
		r.note(ctx, &Record{Record: &kgo.Record{}, Event: engine.Event{ID: bytes.Clone(rec.Event.ID)}})
		wreckAll(rec)
		m.cancel() // the other handlers do not begin
		<-m.parts.all()[0].ending.Done()
		return nil
	}), func(o *Options) {
		o.Routes[0].Concurrency = Concurrency{handlers: 2, key: func(rec *Record) []byte {
			key := bytes.Clone(rec.Event.ID)
			wreckAll(rec)
			rec.Record = &kgo.Record{}
			return key
		}}
	})
	close(started)
	kafkatest.Receive(t, m.done)
	if n := len(r.handled()); n == 0 || n > 2 {
		t.Fatalf("%d handlers ran", n)
	}
	m = r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		return nil
	}))
	r.untilStored(t, 0, 30)
	r.untilHandled(t, 30)
	m.stop(t)
	got := r.handledIDs()
	if slices.Sort(got); len(got) != 30 || len(slices.Compact(got)) != 30 {
		t.Errorf("handled %q", r.handledIDs())
	}
}

// The replay of a dead letter is told by its headers, which Payload overwrites.
func TestReplayIsToldBeforePayloadOverwritesIt(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "poison", "b")
	payload := func(rec *kgo.Record) ([]byte, time.Time, error) {
		id := bytes.Clone(rec.Value[len("value-"):])
		wreck(rec)
		return id, time.Time{}, nil
	}
	change := func(o *Options) { o.Routes[0].Identify.Payload = payload }
	m := r.start(t, r.work(1, failing(errHandler, "poison")), change)
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 3)
	m.stop(t)
	m = r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		wreckAll(rec)
		return nil
	}), change)
	r.replay(t, dead, 2)
	r.untilStored(t, 0, 5)
	m.counts(t, 1, "reopened_total")
	m.stop(t)
	r.checkOnce(t, "a", "poison", "b")
}

// A stop is reported as a copy: an application that changes it changes neither the reason nor what
// others are told.
func TestReportedStopsAreCopies(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a")
	m := r.start(t, r.work(1, func(context.Context, *engine.Tx, *Record) error { return Transient(errAway) }), func(o *Options) {
		before := o.OnStop
		o.OnStop = func(e *StopError) {
			copied := *e
			before(&copied)
			*e = StopError{Topic: "wrecked"}
		}
	})
	m.stoppedOne(t)
	for range 3 {
		all := m.Stopped()
		if len(all) != 1 || all[0].Reason != "transient" || !errors.Is(all[0], errAway) {
			t.Fatalf("stopped: %+v", all)
		}
		*all[0] = StopError{}
		stop := (*StopError)(nil)
		if err := m.Ready(); !errors.As(err, &stop) || stop.Topic != r.topic {
			t.Fatalf("Ready: %v", err)
		}
		*stop = StopError{}
	}
	m.counts(t, 1, "stops_total", "transient")
}

// Options that are changed after New change nothing.
func TestOptionsAreCopied(t *testing.T) {
	r := newRig(t, 1)
	o := r.options(r.work(1, nil))
	o.Routes[0].Identify.IDHeaders = []string{"message_id"}
	letters := &deadletter.Options{}
	o.Routes[0].DeadLetters = letters
	o.Recovery = Recovery{ErrBelowLog: StartOver}
	c, err := New(r.eng, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Routes[0].Topics[0], o.Routes[0].Identify.IDHeaders[0] = "wrecked", "wrecked"
	letters.Topic = func(string) string { return "wrecked" }
	delete(o.Recovery, ErrBelowLog)
	route := c.shared.opt.route(r.topic)
	if route == nil || route.Identify.IDHeaders[0] != "message_id" || route.DeadLetters.TopicOf("t") != "t-dlt" {
		t.Errorf("the route is %+v", route)
	}
	if c.shared.opt.Recovery[ErrBelowLog] != StartOver {
		t.Error("the recovery policies are the caller's")
	}
}

// Of thousands of partitions each may have a few records at a time: they must not hold a chunk each.
func TestFewRecordsTakeLittleMemory(t *testing.T) {
	rec := func() *kgo.Record { return &kgo.Record{Key: make([]byte, 16), Value: make([]byte, 200)} }
	var h hands
	for range 2 { // the buffer is used again
		h.begin(10*256, 10)
		for range 10 {
			h.own().keep(rec())
		}
		if n := len(h.kept.chunks); n > 0 {
			t.Errorf("%d chunks for 10 small records", n)
		}
		h.end()
	}
	var l lookout
	for range 3 {
		l.deliver(rec())
	}
	if l.made > 4 {
		t.Errorf("%d deliveries for 3 records", l.made)
	}
}
