package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// Events that others claim while the transaction waits for its turn belong to them, as do those
// that they claim after the filters were read.
func TestExpectedEventsAreJudgedAsOfTheirTryClaim(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		expected := []engine.Event{event("first"), event("claimed in the turn before"), event("taken now"), event("last")}
		a := t.start(ctx, t.members[0])
		b := t.start(ctx, t.members[1], engine.UpdateOptions{Expected: expected})
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
	err := e.Update(ctx, func(tx *engine.Tx) error {
		c.set(noon.Add(time.Minute))
		for id, want := range map[string]time.Time{"a": noon, "b": noon.Add(time.Minute)} {
			if r, err := tx.TryClaim(event(id)); err != nil || !r.Record.FirstSeen.Equal(want) {
				t.Errorf("%s is seen at %v, %v, want %v", id, r.Record.FirstSeen, err, want)
			}
		}
		return nil
	}, engine.UpdateOptions{Expected: []engine.Event{event("a")}})
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
	err := e.Update(ctx, func(tx *engine.Tx) error {
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
	}, engine.UpdateOptions{Expected: events})
	if err != nil {
		t.Error(err)
	}
}
