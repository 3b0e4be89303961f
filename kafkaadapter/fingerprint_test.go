package kafkaadapter

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// byValue compares the values of records with one id.
func byValue(o *Options) {
	o.Routes[0].Fingerprint = func(r *kgo.Record) []byte { return r.Value }
}

// with is an event with a value.
func (r *rig) with(id, value string) *kgo.Record {
	rec := r.event(0, id)
	rec.Value = []byte(value)
	return rec
}

// Of two records with one id and different values, none is dropped without a line.
func TestIDThatIsUsedForAnotherPayload(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		for _, tt := range []struct {
			name    string
			policy  Policy
			handled int
			letters int64
		}{{"default", 0, 2, 1}, {"reject", Reject, 2, 0}, {"process", Process, 3, 0}} {
			t.Run(tt.name, func(t *testing.T) {
				r := newRig(t, 1)
				r.Produce(t, r.with("a", "1"), r.with("a", "1"), r.with("a", "2"), r.with("b", "1"), r.with("a", "1"))
				m := r.start(t, r.work(1, nil), byValue, func(o *Options) {
					o.Routes[0].Policies[Mismatch], o.Routes[0].Concurrency.handlers = tt.policy, concurrency
				})
				r.untilStored(t, 0, 5)
				m.counts(t, 1, "records_total", "mismatch")
				m.counts(t, 2, "records_total", "duplicate")
				if tt.policy == Reject {
					m.counts(t, 1, "skipped_total", "mismatch")
				}
				m.stop(t)
				if len(r.handled()) != tt.handled || r.letterCount(t) != tt.letters || m.logs.count("level=WARN") == 0 {
					t.Errorf("handled %+v, %d letters\n%s", r.handled(), r.letterCount(t), m.logs)
				}
				if tt.letters > 0 {
					if dead := r.letters(t, 1)[0]; values(dead)["hapax_dlt_reason"] != "mismatch" || string(dead.Value) != "2" {
						t.Errorf("letter %v", values(dead))
					}
				}
			})
		}
	}
}

func TestMismatchWithoutDeadLettersStopsThePartition(t *testing.T) {
	r := newRig(t, 2)
	r.Produce(t, r.with("a", "1"), r.with("a", "2"), r.with("b", "1"))
	m := r.start(t, AtMostOnce(func(ctx context.Context, rec *Record) error {
		r.note(ctx, rec)
		return nil
	}), byValue)
	if e := m.stoppedOne(t); e.Reason != "mismatch" || !errors.Is(e, ErrMismatch) {
		t.Errorf("stopped: %v", e)
	}
	r.untilHandled(t, 1)
	if n := r.stored(t, 0); n != 1 {
		t.Errorf("the store is at %d", n)
	}
	r.send(t, 1, "c")
	r.untilHandled(t, 2)
	m.stop(t)
	if got := r.handledIDs(); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("handled %q", got)
	}
}

// An operator corrects the value of a letter. A copy of the record as it was is still one.
func TestReplayWithACorrectedValueIsNoMismatch(t *testing.T) {
	r := newRig(t, 1)
	r.Produce(t, r.with("a", "wrong"))
	m := r.start(t, r.work(1, func(_ context.Context, _ *engine.Tx, rec *Record) error {
		if string(rec.Value) == "wrong" {
			return errHandler
		}
		return nil
	}), byValue)
	dead := r.letters(t, 1)[0]
	r.untilStored(t, 0, 1)
	dead.Value = []byte("right")
	r.replay(t, dead, 2)
	r.Produce(t, r.with("a", "wrong"))
	r.untilStored(t, 0, 4)
	m.counts(t, 1, "reopened_total")
	m.counts(t, 2, "records_total", "duplicate")
	m.stop(t)
	r.checkOnce(t, "a")
	if n := r.letterCount(t); n != 1 {
		t.Errorf("%d letters", n)
	}
}

func TestPanicOfAFingerprintIsAnUndecodableRecord(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	m := r.start(t, r.work(1, nil), func(o *Options) {
		o.Routes[0].Fingerprint = func(rec *kgo.Record) []byte {
			if string(rec.Value) == "value-a" {
				panic("surprise")
			}
			return nil
		}
	})
	r.untilStored(t, 0, 2)
	dead := values(r.letters(t, 1)[0])
	m.stop(t)
	if dead["hapax_dlt_reason"] != "undecodable" || !slices.Equal(r.handledIDs(), []string{"b"}) {
		t.Errorf("letter %q, handled %q", dead, r.handledIDs())
	}
}

func TestRecordsWithoutAnIDAreReportedOnce(t *testing.T) {
	for _, meant := range []bool{false, true} {
		r := newRig(t, 2)
		for partition := range int32(2) {
			r.Produce(t, &kgo.Record{Topic: r.topic, Partition: partition}, &kgo.Record{Topic: r.topic, Partition: partition})
		}
		m := r.start(t, r.work(1, nil), func(o *Options) {
			if meant {
				o.Routes[0].Identify = identify.Rules{IDHeaders: []string{}}
			}
		})
		for partition := range int32(2) {
			r.untilStored(t, partition, 2)
		}
		m.stop(t)
		if n := m.logs.count("records have no id"); n != map[bool]int{false: 1, true: 0}[meant] {
			t.Errorf("positions meant %v: reported %d times", meant, n)
		}
	}
}
