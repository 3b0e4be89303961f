package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// dated is an event with a time of its own.
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
					mode = OwnCommit{DeadLetters: &DeadLetters{}, Handle: func(ctx context.Context, rec *Record) error {
						r.note(ctx, rec)
						return nil
					}}
				}
				m := r.start(t, mode, func(o *Options) { o.TooOld, o.TooNew = tt.policy, tt.policy })
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
					if values(t, got[0])[dltReason] != "too_old" || values(t, got[2])[dltReason] != "too_new" {
						t.Errorf("letters %v", got)
					}
				}
			})
		}
	}
}

func TestUndecodableRecords(t *testing.T) {
	without := func(r *rig) *kgo.Record { return &kgo.Record{Topic: r.topic, Value: []byte("who?")} }
	noPosition := func(o *Options) { o.Identify.NoPosition = true }
	t.Run("with the work", func(t *testing.T) {
		r := newRig(t, 1)
		r.Produce(t, r.event(0, "a"), without(r), r.event(0, "b"))
		m := r.start(t, r.work(5, nil), noPosition)
		r.untilStored(t, 0, 3)
		m.stop(t)
		r.checkOnce(t, "a", "b")
		if dead := r.letters(t, 1)[0]; string(dead.Value) != "who?" || values(t, dead)[dltReason] != "undecodable" {
			t.Errorf("dead letter %v", dead)
		}
	})
	handle := func(r *rig) func(context.Context, *Record) error {
		return func(ctx context.Context, rec *Record) error { r.note(ctx, rec); return nil }
	}
	t.Run("own-commit", func(t *testing.T) {
		r := newRig(t, 1)
		r.Produce(t, r.event(0, "a"), without(r), r.event(0, "b"))
		m := r.start(t, OwnCommit{Handle: handle(r), DeadLetters: &DeadLetters{}}, noPosition)
		r.letters(t, 1)
		kafkatest.Until(t, "b", func() bool { return len(r.handled()) == 2 })
		m.stop(t)
	})
	t.Run("own-commit without dead letters", func(t *testing.T) {
		r := newRig(t, 2)
		r.Produce(t, r.event(0, "a"), r.event(0, "b"), without(r), r.event(0, "c"))
		m := r.start(t, OwnCommit{Handle: handle(r)}, noPosition)
		if e := m.stoppedOne(t); e.Reason != "undecodable" || !errors.Is(e, ErrUndecodable) || !errors.Is(e, ErrNoID) || e.Partition != 0 {
			t.Errorf("stopped: %v", e)
		}
		r.send(t, 1, "other")
		kafkatest.Until(t, "another partition", func() bool { return slices.Contains(r.handledIDs(), "other") })
		m.stop(t)
		if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b", "other"}) {
			t.Errorf("handled %q: what is before the record that stops is not lost", got)
		}
		if n := r.stored(t, 0); n != 2 {
			t.Errorf("the store is at %d", n)
		}
	})
}

func TestRecordsThatTheEngineRefuses(t *testing.T) {
	long := strings.Repeat("x", engine.DefaultMaxIDBytes+1)
	t.Run("fail closed", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a", long, "b")
		m := r.start(t, r.work(5, nil))
		r.untilStored(t, 0, 3)
		m.stop(t)
		if got := r.handledIDs(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("handled %q", got)
		}
		if got := values(t, r.letters(t, 1)[0]); got[dltReason] != "undecodable" {
			t.Errorf("dead letter %q", got)
		}
	})
	t.Run("fail open", func(t *testing.T) {
		r := newRig(t, 1)
		r.send(t, 0, "a", long, long, "b")
		m := r.start(t, r.work(5, nil), func(o *Options) { o.Failed = FailOpen })
		r.untilStored(t, 0, 4)
		m.counts(t, 2, "unclaimed_total")
		m.stop(t)
		if got := r.handled(); len(got) != 4 || got[1].verdict != engine.Failed || got[2].id != long || r.letterCount(t) != 0 {
			t.Errorf("handled %+v", got)
		}
	})
}

func TestPositionStandsInForAnID(t *testing.T) {
	r := newRig(t, 1)
	same := func() *kgo.Record { return &kgo.Record{Topic: r.topic, Value: []byte("same")} }
	r.Produce(t, same(), same())
	m := r.start(t, r.work(1, nil))
	r.untilStored(t, 0, 2)
	m.counts(t, 2, "ids_total", "position")
	m.stop(t)
	// The records come again, as after a reset by an administrator: they are known.
	r.Commit(t, r.group, r.offset(0, 0, "reset"))
	m = r.start(t, r.work(1, nil), func(o *Options) { o.Positions.Moved = TrustKafka })
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
			o.Topics, o.Identify.PerTopic = []string{r.topic, second}, perTopic
		})
		r.untilStored(t, 0, 1)
		r.UntilCommitted(t, r.group, second, 0, 1)
		m.stop(t)
		if n, want := len(r.handled()), map[bool]int{false: 1, true: 2}[perTopic]; n != want {
			t.Errorf("PerTopic %v: %d are handled", perTopic, n)
		}
	}
}

// Payload may tell each id in the same buffer.
func TestIDsOutOfOneBufferAreDifferentEvents(t *testing.T) {
	ids := numbered("e", 100)
	for name, mode := range map[string]func(r *rig) Mode{
		"work": func(r *rig) Mode { return r.work(1, nil) },
		"own": func(r *rig) Mode {
			return OwnCommit{Handle: func(ctx context.Context, rec *Record) error { r.note(ctx, rec); return nil }}
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
				o.Identify.Payload = func(rec *kgo.Record) ([]byte, time.Time, error) {
					buf = append(buf[:0], rec.Value...)
					return buf, time.Time{}, nil
				}
			})
			r.untilStored(t, 0, int64(len(ids)))
			m.stop(t)
			if got := r.handledIDs(); !slices.Equal(got, ids) {
				t.Errorf("%d events were handled: %q", len(got), got)
			}
		})
	}
}
