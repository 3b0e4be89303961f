package engine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
)

// far is how many weeks ago an event happened whose week is looked at for an event on arrival only
// if it may have claims.
const far = 9

// Events on arrival find a claim that was made since they were prepared in a week without claims.
func TestAFirstClaimOfAnOldWeekCountsOnArrivalInTheSameBatch(t *testing.T) {
	for _, between := range []int{0, 1, 600, 9000} { // one part, several, several batches of the store
		e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20})
		old := at("a", weeksLater(-far))
		events := append([]engine.Event{old}, manyEvents(between)...)
		rs, err := e.TryClaimBatch(ctx, append(events, arriving("a", time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		if r := rs[len(rs)-1]; r.Verdict != engine.Duplicate || r.Record != rs[0].Record {
			t.Errorf("%d events between: %v of %+v", between, r.Verdict, r.Record)
		}
	}
}

func TestAFirstClaimOfAnOldWeekCountsForAnEventThatWasPreparedBefore(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20})
	decide := e.Prepare(t, arriving("a", time.Hour))
	first := claim(t, e, at("a", weeksLater(-far)))
	wantVerdict(t, first, engine.Claimed)
	if r := decide(); r.Verdict != engine.Duplicate || r.Record != first.Record {
		t.Errorf("%v of %+v", r.Verdict, r.Record)
	}
}

func TestAFirstClaimOfAnOldWeekCountsOnArrivalInTheSameTransaction(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20})
	update(t, e, func(tx *engine.Tx) {
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		wantTx(t, tx, at("undone", weeksLater(-far)), engine.Claimed)
		if err := tx.RollbackTo(s); err != nil {
			t.Fatal(err)
		}
		wantTx(t, tx, arriving("undone", time.Hour), engine.Claimed)
		wantTx(t, tx, at("a", weeksLater(-far)), engine.Claimed)
		wantTx(t, tx, arriving("a", time.Hour), engine.Duplicate)
		wantTx(t, tx, at("b", weeksLater(-far-1)), engine.Claimed)
		part, err := driver.BeginSubTx(tx)
		if err != nil {
			t.Fatal(err)
		}
		wantTx(t, part.Tx(), arriving("b", time.Hour), engine.Duplicate)
		wantTx(t, part.Tx(), at("c", weeksLater(-far-2)), engine.Claimed)
		wantTx(t, part.Tx(), arriving("c", time.Hour), engine.Duplicate)
		if err := part.Join(); err != nil {
			t.Fatal(err)
		}
		wantTx(t, tx, arriving("c", time.Hour), engine.Duplicate)
	})
	wantVerdict(t, claim(t, e, arriving("a", time.Hour)), engine.Duplicate)
	verifyClean(t, e, 4)
}

func TestAnOpenTransactionThatClaimedInAnOldWeekIsInFlightOnArrival(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20})
		errUndone := errors.New("undone")
		err := e.Update(ctx, func(tx *engine.Tx) error {
			wantTx(t, tx, at("a", weeksLater(-far)), engine.Claimed)
			wantVerdict(t, judge(e, arriving("a", time.Hour)), engine.InFlight)
			return errUndone
		})
		if !errors.Is(err, errUndone) {
			t.Fatal(err)
		}
		wantVerdict(t, judge(e, arriving("a", time.Hour)), engine.Claimed)
	})
}

func TestATransactionConflictsIfAnOldWeekIsClaimedAfterItsEventOnArrival(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20})
		err := e.Update(ctx, func(tx *engine.Tx) error {
			wantTx(t, tx, arriving("a", time.Hour), engine.Claimed)
			wantVerdict(t, judge(e, at("a", weeksLater(-far))), engine.Claimed)
			return nil
		})
		if !errors.Is(err, engine.ErrConflict) {
			t.Errorf("committed beside a claim on its event: %v", err)
		}
		verifyClean(t, e, 1)
	})
}

func TestAPartIsOutdatedByAFirstClaimOfAnOldWeekOnItsEventOnArrival(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 20})
	update(t, e, func(tx *engine.Tx) {
		part, err := driver.BeginSubTx(tx)
		if err != nil {
			t.Fatal(err)
		}
		wantTx(t, part.Tx(), arriving("a", time.Hour), engine.Claimed)
		wantTx(t, tx, at("a", weeksLater(-far)), engine.Claimed)
		if err := part.Join(); !errors.Is(err, driver.ErrPartOutdated) {
			t.Errorf("joined beside a claim on its event: %v", err)
		}
	})
	verifyClean(t, e, 1)
}
