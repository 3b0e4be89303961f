package kafkaadapter

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/engine"
)

// The sum of a record is written where its batch commits. If that fails, the record is found and
// counts as failed.
func TestRecordWhoseSumCannotBeMadeFailsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		stored []byte
		delta  int64
		err    string
	}{
		"overflow":       {engine.EncodeInt64(math.MaxInt64 - 3), 5, "the sum overflows int64"},
		"not an integer": {[]byte("xyz"), 1, "the value is not an integer of 8 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.put(t, "poisoned", c.stored)
			r.send(t, 0, "a", "b", "poison", "c", "d")
			m := r.start(t, r.work(2, func(_ context.Context, tx *engine.Tx, rec *Record) error {
				if string(rec.Event.ID) == "poison" {
					return tx.Add([]byte("poisoned"), c.delta)
				}
				return tx.Add([]byte("sum"), 1)
			}))
			r.untilStored(t, 0, 5)
			m.counts(t, 2, "failed_attempts_total")
			m.stop(t)
			r.checkOnce(t, "a", "b", "c", "d")
			if n, err := engine.DecodeInt64(r.get(t, []byte("sum"))); n != 4 || err != nil || r.effects(t, "poison") != 0 {
				t.Errorf("the sum is %d, %v; the failed record took effect %d times", n, err, r.effects(t, "poison"))
			}
			dead := values(r.letters(t, 1)[0])
			if dead["hapax_dlt_event_id"] != "poison" || dead["hapax_dlt_attempts"] != "2" || !strings.Contains(dead["hapax_dlt_error"], c.err) {
				t.Errorf("dead letter %q", dead)
			}
			if n := r.letterCount(t); n != 1 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

// The sum of a batch may overflow where that of a single record does not: then no record has
// failed.
func TestSumThatOverflowsOnlyInABatchIsNoFailure(t *testing.T) {
	r := newRig(t, 1)
	r.put(t, "sum", engine.EncodeInt64(-10))
	r.send(t, 0, "a", "b", "c")
	m := r.start(t, r.work(1, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		return tx.Add([]byte("sum"), map[string]int64{"a": math.MaxInt64, "b": 5, "c": -7}[string(rec.Event.ID)])
	}))
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c")
	if n, err := engine.DecodeInt64(r.get(t, []byte("sum"))); n != math.MaxInt64-12 || err != nil {
		t.Errorf("the sum is %d, %v", n, err)
	}
	if n := r.letterCount(t); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// After an unclean stop, attempts are stored before their handlers run: an overflowing sum does not
// count a second attempt.
func TestSumThatCannotBeMadeCountsOnceAfterAnUncleanStop(t *testing.T) {
	r := newRig(t, 1)
	r.put(t, "poisoned", []byte("xyz"))
	r.send(t, 0, "a", "poison", "b")
	r.died(t, 0)
	m := r.start(t, r.work(3, func(_ context.Context, tx *engine.Tx, rec *Record) error {
		if string(rec.Event.ID) == "poison" {
			return tx.Add([]byte("poisoned"), 1)
		}
		return nil
	}))
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "b")
	var tries []int
	for _, x := range r.handled() {
		if x.id == "poison" {
			tries = append(tries, x.attempt)
		}
	}
	if !slices.Equal(tries, []int{1, 2, 3}) {
		t.Errorf("attempts %v", tries)
	}
	if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_attempts"] != "3" {
		t.Errorf("dead letter %q", dead)
	}
}

func (r *rig) put(t *testing.T, key string, value []byte) {
	t.Helper()
	err := r.eng.Update(context.Background(), func(tx *engine.Tx) error { return tx.Put([]byte(key), value) })
	if err != nil {
		t.Fatal(errors.Join(errors.New("putting a key"), err))
	}
}
