package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// Events that others claim while the transaction waits for its turn belong to them, as do those
// that they claim after the filters were read.
func TestExpectedEventsAreJudgedAsOfTheirTryClaim(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		expected := []engine.Event{event("first"), event("claimed in the turn before"), event("taken now"), event("last")}
		a := t.start(ctx, t.members[0])
		b := t.start(ctx, t.members[1], driver.UpdateOptions{Expected: expected})
		if b.hasBegun() {
			t.Fatal("the second member does not wait")
		}
		a.leave <- func(tx *engine.Tx) error {
			wantTx(t, tx, expected[1], engine.Claimed)
			return nil
		}
		<-a.ended
		b.leave <- func(tx *engine.Tx) error {
			wantTx(t, tx, expected[0], engine.Claimed)
			wantTx(t, tx, expected[1], engine.Duplicate)
			wantVerdict(t, claim(t, t.e, expected[2]), engine.Claimed)
			wantTx(t, tx, expected[2], engine.Duplicate)
			wantTx(t, tx, expected[3], engine.Claimed)
			return nil
		}
		<-b.ended
		for _, ev := range expected {
			wantVerdict(t, claim(t, t.e, ev), engine.Duplicate)
		}
	})
}

// An event that is not prepared before the transaction begins has the time of its claim.
func TestExpectedEventsArePreparedBeforeTheTransaction(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	err := driver.Update(ctx, e, func(tx *engine.Tx) error {
		c.set(noon.Add(time.Minute))
		for id, want := range map[string]time.Time{"a": noon, "b": noon.Add(time.Minute)} {
			if r, err := tx.TryClaim(event(id)); err != nil || !r.Record.FirstSeen.Equal(want) {
				t.Errorf("%s is seen at %v, %v, want %v", id, r.Record.FirstSeen, err, want)
			}
		}
		return nil
	}, driver.UpdateOptions{Expected: []engine.Event{event("a")}})
	if err != nil {
		t.Error(err)
	}
}

// The filters are read for some events at a time. Others claim every third event, some before the
// transaction, some while it is open.
func TestManyExpectedEvents(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	events := make([]engine.Event, 200)
	for i := range events {
		events[i] = event(fmt.Sprint(i))
	}
	for i := 0; i < len(events); i += 3 {
		if i%2 == 0 {
			wantVerdict(t, claim(t, e, events[i]), engine.Claimed)
		}
	}
	err := driver.Update(ctx, e, func(tx *engine.Tx) error {
		for i := range events {
			want := engine.Claimed
			if i%3 == 0 {
				want = engine.Duplicate
				if i%2 == 1 {
					wantVerdict(t, claim(t, e, events[i]), engine.Claimed)
				}
			}
			wantTx(t, tx, events[i], want)
		}
		return nil
	}, driver.UpdateOptions{Expected: events})
	if err != nil {
		t.Error(err)
	}
}

// Work before the turn is told which events have a claim, which costs no claim if it was withdrawn.
func TestOnPrefetched(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	const judged = 100
	var events []engine.Event
	for i := range judged {
		events = append(events, event(fmt.Sprint(i)))
		if i%3 == 0 {
			wantVerdict(t, claim(t, e, events[i]), engine.Claimed)
		}
	}
	if found, err := e.Admin().Forget(ctx, events[0].Scope, events[0].ID, events[0].Time); !found || err != nil {
		t.Fatal(found, err)
	}
	events = append(events, engine.Event{ID: []byte("window"), Window: time.Hour})
	calls, runs := 0, 0
	err := driver.Update(ctx, e, func(tx *engine.Tx) error {
		if runs++; runs == 1 {
			return engine.ErrConflict
		}
		wantTx(t, tx, events[0], engine.Claimed)
		wantTx(t, tx, events[1], engine.Claimed)
		wantTx(t, tx, events[3], engine.Duplicate)
		return nil
	}, driver.UpdateOptions{Retries: 1, Expected: events, OnPrefetched: func(claimed []bool) {
		if calls++; runs > 0 || len(claimed) != len(events) {
			t.Errorf("it is called after %d runs for %d events, want 0 and %d", runs, len(claimed), len(events))
		}
		for i, got := range claimed {
			if want := i%3 == 0 && i < judged; got != want {
				t.Errorf("event %d: %t, want %t", i, got, want)
			}
		}
	}})
	if err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// A panic before the turn ends the transaction, which does not keep the lane.
func TestPanicBeforeTheTurn(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		func() {
			defer func() {
				if recover() != "before" {
					t.Error("the panic was not passed on")
				}
			}()
			_ = driver.Update(ctx, t.e, func(*engine.Tx) error { t.Error("fn runs"); return nil },
				driver.UpdateOptions{Lane: t.members[0], OnPrefetched: func(claimed []bool) {
					if claimed != nil {
						t.Errorf("no event was expected: %v", claimed)
					}
					panic("before")
				}})
		}()
		if s, err := t.e.Stats(); err != nil || s.OpenTransactions != 0 {
			t.Errorf("%d transactions are open, %v", s.OpenTransactions, err)
		}
		b := t.start(ctx, t.members[1])
		b.leave <- func(tx *engine.Tx) error {
			wantTx(t, tx, event("e"), engine.Claimed)
			return nil
		}
		<-b.ended
	})
}

// A context that ends during the work before the turn ends the transaction before fn runs.
func TestContextThatEndsBeforeTheTurn(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		for _, member := range []*driver.LaneMember{nil, t.members[0]} {
			ended, end := context.WithCancel(ctx)
			err := driver.Update(ended, t.e, func(*engine.Tx) error { t.Error("fn runs"); return nil },
				driver.UpdateOptions{Lane: member, OnPrefetched: func([]bool) { end() }})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Update: %v", err)
			}
		}
		b := t.start(ctx, t.members[1])
		b.leave <- func(tx *engine.Tx) error {
			wantTx(t, tx, event("e"), engine.Claimed)
			return nil
		}
		<-b.ended
	})
}

// A transaction reads as of the end of the work before its turn: a key that is written meanwhile is no
// conflict.
func TestReadsAreAsOfTheEndOfTheWorkBeforeTheTurn(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	put := func(value string) { update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", value) }) }
	put("before")
	err := driver.Update(ctx, e, func(tx *engine.Tx) error {
		value, _, err := tx.Get([]byte("k"))
		if string(value) != "meanwhile" {
			t.Errorf("the value is %q", value)
		}
		return err
	}, driver.UpdateOptions{OnPrefetched: func([]bool) { put("meanwhile") }})
	if err != nil {
		t.Error(err)
	}
}
