package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// A group is one call of HandleBatch: the ids of its records, the attempt at the first of them, and
// the returned error.
type group struct {
	ids     []string
	attempt int
	err     error
}

// groups is a mode whose HandleBatch counts its events in the store, and then returns the result of
// f. It records its calls.
func (r *rig) groups(attempts int, f func(ids []string) error) (mode Transactional, calls func() []group) {
	var all []group
	mode = Transactional{MaxAttempts: attempts, HandleBatch: func(ctx context.Context, tx *engine.Tx, recs []*Record) error {
		g := group{attempt: recs[0].Attempt}
		for _, rec := range recs {
			r.note(ctx, rec)
			g.ids = append(g.ids, string(rec.Event.ID))
			if err := count(tx, string(rec.Event.ID)); err != nil {
				return err
			}
		}
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			all = append(all, g)
		}()
		if f != nil {
			g.err = f(g.ids)
		}
		return g.err
	}}
	return mode, func() []group {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Clone(all)
	}
}

// sizes returns the sizes of the calls.
func sizes(calls []group) (n []int) {
	for _, g := range calls {
		n = append(n, len(g.ids))
	}
	return n
}

// naming fails at an event, and names it unless blind is set.
func naming(err error, id string, blind bool) func(ids []string) error {
	return func(ids []string) error {
		i := slices.Index(ids, id)
		switch {
		case i < 0:
			return nil
		case blind:
			return err
		}
		return FailedAt(i, err)
	}
}

func TestRecordsOfABatchAreHandledTogether(t *testing.T) {
	r := newRig(t, 1)
	ids := numbered("a", 40)
	r.send(t, 0, append(ids, ids[:5]...)...)
	mode, calls := r.groups(1, nil)
	m := r.start(t, mode)
	r.untilStored(t, 0, 45)
	m.counts(t, 40, "records_total", "claimed")
	m.counts(t, 5, "records_total", "duplicate")
	m.stop(t)
	r.checkOnce(t, ids...)
	if got := sizes(calls()); !slices.Equal(got, []int{40}) {
		t.Errorf("calls of %v records", got)
	}
}

func TestNamedRecordOfABatchFailsAlone(t *testing.T) {
	r := newRig(t, 1)
	ids := append(numbered("a", 20), "poison")
	ids = append(ids, numbered("b", 19)...)
	r.send(t, 0, ids...)
	mode, calls := r.groups(3, naming(errHandler, "poison", false))
	m := r.start(t, mode)
	r.untilStored(t, 0, 40)
	m.counts(t, 3, "failed_attempts_total")
	m.stop(t)
	r.checkOnce(t, append(numbered("a", 20), numbered("b", 19)...)...)
	if got := sizes(calls()); !slices.Equal(got, []int{40, 20, 1, 1, 19}) || r.effects(t, "poison") != 0 {
		t.Errorf("calls of %v records; the one that failed took effect %d times", got, r.effects(t, "poison"))
	}
	var tries []int
	for _, g := range calls() {
		if g.ids[0] == "poison" {
			tries = append(tries, g.attempt)
		}
	}
	if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_event_id"] != "poison" || dead["hapax_dlt_attempts"] != "3" || !slices.Equal(tries, []int{2, 3}) {
		t.Errorf("attempts %v, dead letter %q", tries, dead)
	}
}

func TestUnnamedRecordOfABatchIsFoundByHalving(t *testing.T) {
	for name, err := range map[string]error{"error": errHandler, "panic": nil} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			ids := append(numbered("a", 21), "poison")
			ids = append(ids, numbered("b", 18)...)
			r.send(t, 0, ids...)
			fail := naming(errHandler, "poison", true)
			mode, calls := r.groups(2, func(ids []string) error {
				if failed := fail(ids); failed != nil && err == nil {
					panic("no such thing")
				} else {
					return failed
				}
			})
			m := r.start(t, mode)
			r.untilStored(t, 0, 40)
			m.counts(t, 2, "failed_attempts_total")
			m.stop(t)
			r.checkOnce(t, append(numbered("a", 21), numbered("b", 18)...)...)
			if n := len(calls()); n > 12 {
				t.Errorf("%d calls, of %v records", n, sizes(calls()))
			}
			if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_event_id"] != "poison" || dead["hapax_dlt_attempts"] != "2" || r.effects(t, "poison") != 0 {
				t.Errorf("dead letter %q", dead)
			}
			if n := r.letterCount(t); n != 1 {
				t.Errorf("%d dead letters", n)
			}
		})
	}
}

func TestPermanentFailureInABatchIsADeadLetterAtOnce(t *testing.T) {
	for _, err := range []error{FailedAt(1, Permanent(errHandler)), Permanent(FailedAt(1, errHandler))} {
		r := newRig(t, 1)
		r.send(t, 0, "a", "poison", "b")
		mode, calls := r.groups(1000, func(ids []string) error {
			if slices.Contains(ids, "poison") {
				return err
			}
			return nil
		})
		m := r.start(t, mode, func(o *Options) { o.backoff.Min, o.backoff.Max = time.Hour, time.Hour })
		r.untilStored(t, 0, 3)
		m.stop(t)
		r.checkOnce(t, "a", "b")
		if got := sizes(calls()); !slices.Equal(got, []int{3, 1, 1}) || r.letterCount(t) != 1 {
			t.Errorf("calls of %v records, %d dead letters", got, r.letterCount(t))
		}
	}
}

func TestTransientFailureOfABatchCountsNoAttempt(t *testing.T) {
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("named=%v", named), func(t *testing.T) {
			r := newRig(t, 1)
			r.send(t, 0, "a", "b", "c")
			var away atomic.Bool
			away.Store(true)
			mode, _ := r.groups(1, func(ids []string) error {
				if i := slices.Index(ids, "b"); i >= 0 && away.Load() {
					if named {
						return FailedAt(i, Transient(errAway))
					}
					return Transient(errAway)
				}
				return nil
			})
			m := r.start(t, mode)
			if e := m.stoppedOne(t); e.Reason != "transient" || !errors.Is(e, errAway) {
				t.Errorf("stopped: %v", e)
			}
			kafkatest.Until(t, "more tries", func() bool { return len(r.handled()) > 8 })
			if err := m.Ready(); !errors.Is(err, ErrNotReady) || !errors.Is(err, errAway) {
				t.Errorf("Ready: %v", err)
			}
			m.counts(t, 1, "partition_stopped", "transient")
			m.counts(t, 1, "stops_total", "transient") // it is one stop, however often it is retried
			if n := r.stored(t, 0); named && n != 1 || !named && n > 0 {
				t.Errorf("the store is at %d", n)
			}
			if a := r.attemptsAt(t, 0); a != (owner.Attempts{}) {
				t.Errorf("attempts %+v", a)
			}
			away.Store(false)
			r.untilStored(t, 0, 3)
			m.stop(t)
			r.checkOnce(t, "a", "b", "c")
			if r.letterCount(t) != 0 {
				t.Error("a transient error made a dead letter")
			}
		})
	}
}

func TestBatchInConflictRunsAgain(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "c")
	var conflicts atomic.Int32
	mode := Transactional{MaxAttempts: 1, HandleBatch: func(_ context.Context, tx *engine.Tx, recs []*Record) error {
		if _, _, err := tx.Get([]byte("balance")); err != nil {
			return err
		}
		for _, rec := range recs {
			if err := count(tx, string(rec.Event.ID)); err != nil {
				return err
			}
		}
		if conflicts.Add(1) <= 3 {
			r.put(t, "balance", []byte{byte(conflicts.Load())})
		}
		_, _, err := tx.Get([]byte("balance"))
		return err
	}}
	m := r.start(t, mode)
	r.untilStored(t, 0, 3)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c")
	if n := r.letterCount(t); n != 0 || conflicts.Load() < 4 {
		t.Errorf("%d dead letters after %d tries", n, conflicts.Load())
	}
}

// After an unclean end, each record is handled alone, and its attempt is stored before: a record
// that kills the process is found.
func TestBatchesAfterAnUncleanEndHaveOneRecord(t *testing.T) {
	r := newRig(t, 1)
	ids := append(numbered("a", 9), "poison")
	r.send(t, 0, ids...)
	r.died(t, 0)
	mode, calls := r.groups(2, func(ids []string) error {
		if a := r.attemptsAt(t, 0); a.N == 0 {
			t.Errorf("%q are handled, and no attempt is stored", ids)
		}
		return naming(errHandler, "poison", true)(ids)
	})
	m := r.start(t, mode)
	r.untilStored(t, 0, 10)
	m.stop(t)
	r.checkOnce(t, ids[:9]...)
	if got := sizes(calls()); len(got) != 11 || slices.Max(got) != 1 {
		t.Errorf("calls of %v records", got)
	}
	if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_attempts"] != "2" {
		t.Errorf("dead letter %q", dead)
	}
}

func TestSumOfABatchThatCannotBeMade(t *testing.T) {
	r := newRig(t, 1)
	r.put(t, "poisoned", []byte("xyz"))
	r.send(t, 0, "a", "b", "poison", "c")
	m := r.start(t, Transactional{MaxAttempts: 2, HandleBatch: func(_ context.Context, tx *engine.Tx, recs []*Record) error {
		for _, rec := range recs {
			if string(rec.Event.ID) == "poison" {
				return tx.Add([]byte("poisoned"), 1)
			}
			if err := count(tx, string(rec.Event.ID)); err != nil {
				return err
			}
		}
		return nil
	}})
	r.untilStored(t, 0, 4)
	m.stop(t)
	r.checkOnce(t, "a", "b", "c")
	if dead := values(r.letters(t, 1)[0]); dead["hapax_dlt_event_id"] != "poison" || !strings.Contains(dead["hapax_dlt_error"], "the value is not an integer of 8 bytes") {
		t.Errorf("dead letter %q", dead)
	}
}
