package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// dated returns an event with a time of its own.
func (r *rig) dated(id string, at time.Time) *kgo.Record {
	return r.event(0, id, kgo.RecordHeader{Key: "event_time", Value: []byte(at.UTC().Format(time.RFC3339Nano))})
}

func TestPoliciesForTimesOutOfBounds(t *testing.T) {
	old, future := time.Now().AddDate(-1, 0, 0), time.Now().AddDate(0, 0, 10)
	for _, tt := range []struct {
		name    string
		policy  Policy
		handled []string
		letters int64
	}{
		{"default", 0, []string{"a", "b"}, 3},
		{"reject", Reject, []string{"a", "b"}, 0},
		{"process", Process, []string{"a", "old", "old", "new", "b"}, 0},
		{"dead letter", DeadLetter, []string{"a", "b"}, 3},
	} {
		for _, own := range []bool{false, true} {
			t.Run(tt.name+map[bool]string{true: " own"}[own], func(t *testing.T) {
				r := newRig(t, 1)
				r.Produce(t, r.event(0, "a"), r.dated("old", old), r.dated("old", old), r.dated("new", future), r.event(0, "b"))
				var mode Mode = r.work(1, nil)
				if own {
					mode = AtMostOnce(func(ctx context.Context, rec *Record) error {
						r.note(ctx, rec)
						return nil
					})
				}
				m := r.start(t, mode, withDeadLetters, func(o *Options) { o.Routes[0].Policies[TooOld], o.Routes[0].Policies[TooNew] = tt.policy, tt.policy })
				r.untilStored(t, 0, 5)
				kafkatest.Until(t, "handlers", func() bool { return len(r.handled()) >= len(tt.handled) })
				kafkatest.Until(t, "dead letters", func() bool { return r.letterCount(t) >= tt.letters })
				m.stop(t)
				if got := r.handledIDs(); !slices.Equal(got, tt.handled) {
					t.Errorf("handled %q, want %q", got, tt.handled)
				}
				if n := r.letterCount(t); n != tt.letters {
					t.Errorf("%d dead letters", n)
				}
				for _, x := range r.handled() {
					want := map[string]engine.Verdict{"old": engine.TooOld, "new": engine.TooNew, "a": engine.Claimed, "b": engine.Claimed}[x.id]
					if x.verdict != want {
						t.Errorf("%s is handled as %v", x.id, x.verdict)
					}
				}
				if tt.letters > 0 {
					got := r.letters(t, 3)
					if values(got[0])["hapax_dlt_reason"] != "too_old" || values(got[2])["hapax_dlt_reason"] != "too_new" {
						t.Errorf("letters %v", got)
					}
				}
			})
		}
	}
}

// A record that is handled without a claim counts once, after it has been handled.
func TestHandlingWithoutAClaimCountsCommittedRecords(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		r := newRig(t, 1)
		past := time.Now().AddDate(-1, 0, 0)
		r.Produce(t, r.dated("old", past), r.event(0, "new"), r.dated("poison", past))
		m := r.start(t, r.work(3, func(_ context.Context, _ *engine.Tx, rec *Record) error {
			if string(rec.Event.ID) == "poison" || rec.Attempt < 3 {
				return errHandler
			}
			return nil
		}), func(o *Options) {
			o.Routes[0].Policies[TooOld], o.Routes[0].Concurrency.handlers = Process, concurrency
		})
		r.untilStored(t, 0, 3)
		m.counts(t, 1, "dead_letters_total")
		m.counts(t, 1, "unclaimed_total")
		m.counts(t, 1, "records_total", "too_old")
		m.stop(t)
		if n := m.logs.count("handled without a claim"); n != 1 {
			t.Errorf("the log says %d times that a record was handled without a claim", n)
		}
	}
}

func TestUndecodableRecords(t *testing.T) {
	without := func(r *rig) *kgo.Record { return &kgo.Record{Topic: r.topic, Value: []byte("who?")} }
	noPosition := func(o *Options) { o.Routes[0].Identify.NoPosition = true }
	t.Run("with the work", func(t *testing.T) {
		r := newRig(t, 1)
		r.Produce(t, r.event(0, "a"), without(r), r.event(0, "b"))
		m := r.start(t, r.work(5, nil), noPosition)
		r.untilStored(t, 0, 3)
		dead := r.letters(t, 1)[0]
		m.stop(t)
		r.checkOnce(t, "a", "b")
		if string(dead.Value) != "who?" || values(dead)["hapax_dlt_reason"] != "undecodable" {
			t.Errorf("dead letter %v", dead)
		}
	})
	handle := func(r *rig) func(context.Context, *Record) error {
		return func(ctx context.Context, rec *Record) error { r.note(ctx, rec); return nil }
	}
	t.Run("at most once", func(t *testing.T) {
		r := newRig(t, 1)
		r.Produce(t, r.event(0, "a"), without(r), r.event(0, "b"))
		m := r.start(t, AtMostOnce(handle(r)), noPosition, withDeadLetters)
		r.letters(t, 1)
		kafkatest.Until(t, "b", func() bool { return len(r.handled()) == 2 })
		m.stop(t)
	})
	t.Run("at most once, rejected", func(t *testing.T) {
		r := newRig(t, 1)
		r.Produce(t, r.event(0, "a"), r.event(0, "b"), without(r), r.event(0, strings.Repeat("x", 2<<10)), r.event(0, "c"))
		m := r.start(t, AtMostOnce(handle(r)), noPosition)
		kafkatest.Until(t, "c", func() bool { return len(r.handled()) == 3 })
		m.counts(t, 2, "skipped_total", "undecodable")
		m.stop(t)
		if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "c"}) || r.stored(t, 0) != 5 {
			t.Errorf("handled %q, the store is at %d", got, r.stored(t, 0))
		}
	})
	t.Run("AtMostOnce, an id that is too long", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a", strings.Repeat("x", 2<<10), "b")
		m := r.start(t, AtMostOnce(handle(r)), withDeadLetters)
		kafkatest.Until(t, "b", func() bool { return len(r.handled()) == 2 })
		dead := r.letters(t, 1)[0]
		m.stop(t)
		if got := values(dead); got["hapax_dlt_reason"] != "undecodable" || len(got["message_id"]) != 2<<10 {
			t.Errorf("dead letter %q", got)
		}
	})
}

func TestRecordsThatTheEngineRejects(t *testing.T) {
	long := strings.Repeat("x", 1024+1)
	t.Run("fail closed", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a", long, "b")
		m := r.start(t, r.work(5, nil))
		r.untilStored(t, 0, 3)
		dead := r.letters(t, 1)[0]
		m.stop(t)
		if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("handled %q", got)
		}
		if got := values(dead); got["hapax_dlt_reason"] != "undecodable" {
			t.Errorf("dead letter %q", got)
		}
	})
	t.Run("fail open", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a", long, long, "b")
		m := r.start(t, r.work(5, nil), func(o *Options) { o.Routes[0].Policies[Failed] = Process })
		r.untilStored(t, 0, 4)
		m.counts(t, 2, "unclaimed_total")
		m.stop(t)
		if got := r.handled(); len(got) != 4 || got[1].verdict != engine.Failed || got[2].id != long || r.letterCount(t) != 0 {
			t.Errorf("handled %+v", got)
		}
	})
}

// The store has no room for the name of one more topic or scope, which is found when the batch of
// AtMostOnce commits. The policy for Failed decides, and other partitions are not affected.
func TestEventsThatExceedALimitOfTheStore(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	events := make([]engine.Event, limits.Names)
	for i := range events {
		events[i] = engine.Event{Scope: fmt.Sprint(i), ID: []byte("x"), Time: time.Now(), Origin: engine.Origin{Topic: "t"}}
	}
	if _, err := r.eng.TryClaimBatch(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	m := r.start(t, r.noting())
	if e := m.stoppedOne(t); e.Reason != "limit" || !errors.Is(e, engine.ErrLimit) || len(r.handled()) != 0 {
		t.Errorf("stopped: %v, handled %v", e, r.handled())
	}
	m.stop(t)
	m = r.start(t, r.noting(), func(o *Options) { o.Routes[0].Policies[Failed] = Process })
	r.untilHandled(t, 2)
	m.counts(t, 2, "unclaimed_total")
	m.stop(t)
	if got := r.handled(); len(got) != 2 || got[0].id != "a" || got[0].verdict != engine.Failed || r.stored(t, 0) != 2 {
		t.Errorf("handled %+v", got)
	}
}

func TestPositionIsUsedInPlaceOfAnID(t *testing.T) {
	r := newRig(t, 1)
	same := func() *kgo.Record { return &kgo.Record{Topic: r.topic, Value: []byte("same")} }
	r.Produce(t, same(), same())
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 2)
	m.counts(t, 2, "ids_total", "position")
	m.stop(t)
	// The records are read again, as after a reset by an administrator: their events are claimed.
	r.Commit(t, r.group, r.offset(0, 0, "reset"))
	m = r.start(t, r.work(1, nil), func(o *Options) { o.Recovery = Recovery{ErrOffsetReset: TrustKafka} })
	r.UntilCommitted(t, r.group, r.topic, 0, 2)
	m.stop(t)
	if n := len(r.handled()); n != 2 {
		t.Errorf("%d calls", n)
	}
}

func TestSharedIDsAreOneEventUnlessPerTopic(t *testing.T) {
	for _, perTopic := range []bool{false, true} {
		r := newRig(t, 1)
		second := r.CreateTopic(t, 1, nil)
		other := r.event(0, "a")
		other.Topic = second
		r.Produce(t, r.event(0, "a"), other)
		m := r.start(t, r.work(1, nil), func(o *Options) {
			o.Routes[0].Topics, o.Routes[0].Identify.PerTopic = []string{r.topic, second}, perTopic
		})
		r.untilStored(t, 0, 1)
		r.UntilCommitted(t, r.group, second, 0, 1)
		m.stop(t)
		if n, want := len(r.handled()), map[bool]int{false: 1, true: 2}[perTopic]; n != want {
			t.Errorf("PerTopic %v: %d are handled", perTopic, n)
		}
	}
}

// Payload may return each id in the same buffer.
func TestIDsFromOneBufferAreDifferentEvents(t *testing.T) {
	ids := numbered("e", 100)
	for name, mode := range map[string]func(r *rig) Mode{
		"work": func(r *rig) Mode { return r.work(1, nil) },
		"own": func(r *rig) Mode {
			return AtMostOnce(func(ctx context.Context, rec *Record) error { r.note(ctx, rec); return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			recs := make([]*kgo.Record, len(ids))
			for i, id := range ids {
				recs[i] = &kgo.Record{Topic: r.topic, Value: []byte(id)}
			}
			r.Produce(t, recs...)
			var buf []byte
			m := r.start(t, mode(r), func(o *Options) {
				o.Routes[0].Identify.Payload = func(rec *kgo.Record) ([]byte, time.Time, error) {
					buf = append(buf[:0], rec.Value...)
					return buf, time.Time{}, nil
				}
			})
			r.untilStored(t, 0, int64(len(ids)))
			r.untilHandled(t, len(ids))
			m.stop(t)
			if got := r.handledIDs(); !slices.Equal(got, ids) {
				t.Errorf("%d events were handled: %q", len(got), got)
			}
		})
	}
}
