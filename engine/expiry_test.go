package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
)

// The Monday after noon, and a time just before it.
var (
	monday = time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC)
	sunday = monday.Add(-time.Millisecond)
)

// windowed returns an event with a window; arriving returns one without a time of its own.
func windowed(id string, window time.Duration) engine.Event {
	ev := event(id)
	ev.Window = window
	return ev
}

func arriving(id string, window time.Duration) engine.Event {
	ev := windowed(id, window)
	ev.Time = time.Time{}
	return ev
}

func TestAnEventIsClaimedAgainOnceItsWindowHasEnded(t *testing.T) {
	for name, try := range map[string]func(*testing.T, *engine.Engine, engine.Event) engine.Result{
		"at most once": func(t *testing.T, e *engine.Engine, ev engine.Event) engine.Result { return claim(t, e, ev) },
		"transaction": func(t *testing.T, e *engine.Engine, ev engine.Event) (r engine.Result) {
			update(t, e, func(tx *engine.Tx) { r, _ = tx.TryClaim(ev) })
			return r
		},
	} {
		for _, ev := range []engine.Event{windowed("a", time.Hour), arriving("b", time.Hour)} {
			t.Run(fmt.Sprint(name, " ", ev.Time.IsZero()), func(t *testing.T) {
				c := &clock{t: noon}
				e, _ := openMem(t, engine.Options{Clock: c.now})
				wantLife(t, try(t, e, ev), engine.Claimed, 0, noon)
				wantLife(t, try(t, e, ev), engine.Duplicate, 0, noon)
				c.set(noon.Add(time.Hour - time.Millisecond))
				wantLife(t, try(t, e, ev), engine.Duplicate, 0, noon)
				c.set(noon.Add(time.Hour))
				wantLife(t, try(t, e, ev), engine.Claimed, 1, noon.Add(time.Hour))
				wantLife(t, try(t, e, ev), engine.Duplicate, 1, noon.Add(time.Hour))
				c.set(noon) // the clock was set back: the first window has ended nevertheless
				wantLife(t, try(t, e, ev), engine.Duplicate, 1, noon.Add(time.Hour))

				c.set(noon.Add(2 * time.Hour))
				plain := ev
				plain.Time, plain.Window = noon, 0
				wantLife(t, try(t, e, plain), engine.Claimed, 2, noon.Add(2*time.Hour))
				c.set(noon.Add(24 * time.Hour))
				wantLife(t, try(t, e, ev), engine.Duplicate, 2, noon.Add(2*time.Hour))
			})
		}
	}
}

// Two copies were sent together, and the consumer was down between them for longer than the window.
// The one that arrives later is a duplicate; an event that was sent after the window is not.
func TestACopyThatWasSentWithinTheWindowIsADuplicateHoweverLate(t *testing.T) {
	late := func(ev engine.Event, sent time.Time) engine.Event {
		ev.Sent = sent
		return ev
	}
	for name, try := range map[string]func(*testing.T, *engine.Engine, engine.Event) engine.Result{
		"at most once": func(t *testing.T, e *engine.Engine, ev engine.Event) engine.Result { return claim(t, e, ev) },
		"transaction": func(t *testing.T, e *engine.Engine, ev engine.Event) (r engine.Result) {
			update(t, e, func(tx *engine.Tx) { r, _ = tx.TryClaim(ev) })
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, outage := range []time.Duration{3 * time.Hour, 17 * 24 * time.Hour} { // across Mondays, too
				c := &clock{t: sunday}
				e, m := openMem(t, engine.Options{Clock: c.now})
				ev := arriving("a", time.Hour)
				sent := sunday.Add(-10 * time.Hour) // the consumer lags
				first := try(t, e, late(ev, sent))
				wantLife(t, first, engine.Claimed, 0, sunday)
				if first.Record.SentUnixMilli != sent.UnixMilli() {
					t.Errorf("sent %d", first.Record.SentUnixMilli)
				}
				e = open(t, m.Crash(), engine.Options{Clock: c.now})
				c.set(sunday.Add(outage))
				wantLife(t, try(t, e, late(ev, sent)), engine.Duplicate, 0, sunday)
				wantLife(t, try(t, e, late(ev, sent.Add(time.Hour-time.Millisecond))), engine.Duplicate, 0, sunday)
				wantLife(t, try(t, e, late(ev, sent.Add(time.Millisecond-time.Hour))), engine.Duplicate, 0, sunday)
				again := sent.Add(time.Hour)
				if r := try(t, e, late(ev, again)); r.Verdict != engine.Claimed {
					t.Errorf("sent after the window: %v", r.Verdict)
				}
				if r := try(t, e, late(ev, again.Add(30*24*time.Hour))); r.Verdict != engine.Duplicate { // both arrive together
					t.Errorf("it arrives within the window: %v", r.Verdict)
				}
				c.set(c.now().Add(time.Hour))
				if r := try(t, e, ev); r.Verdict != engine.Claimed {
					t.Errorf("sent at an unknown time: %v", r.Verdict)
				}
			}
		})
	}
}

func wantLife(t *testing.T, r engine.Result, want engine.Verdict, generation uint64, seen time.Time) {
	t.Helper()
	if r.Verdict != want || r.Record.Generation != generation || !r.Record.FirstSeen.Equal(seen) {
		t.Fatalf("%v with generation %d, seen %v; want %v, %d, %v", r.Verdict, r.Record.Generation, r.Record.FirstSeen, want, generation, seen)
	}
}

// Half of them make at-most-once claims and half claim in a transaction.
func TestOneOfAThousandClaimsAnExpiredClaim(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	ev := windowed("a", time.Hour)
	wantVerdict(t, claim(t, e, ev), engine.Claimed)
	for round := 1; round <= 3; round++ {
		c.set(noon.Add(time.Duration(round) * time.Hour))
		var claimed, other atomic.Int64
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				var r engine.Result
				var err error
				if i%2 == 0 {
					r, err = e.TryClaim(ctx, ev)
				} else {
					err = e.Update(ctx, func(tx *engine.Tx) (err error) {
						r, err = tx.TryClaim(ev)
						return err
					})
				}
				switch {
				case err == nil && r.Verdict == engine.Claimed:
					claimed.Add(1)
				case err == nil && r.Verdict != engine.Duplicate && r.Verdict != engine.InFlight, err != nil && !errors.Is(err, engine.ErrConflict):
					other.Add(1)
				}
			})
		}
		wg.Wait()
		if claimed.Load() != 1 || other.Load() != 0 {
			t.Fatalf("round %d: %d claimed the event, %d got another verdict", round, claimed.Load(), other.Load())
		}
		if r := claim(t, e, ev); r.Record.Generation != uint64(round) {
			t.Fatalf("round %d: generation %d", round, r.Record.Generation)
		}
	}
}

func TestARedeliveryAfterMondayIsADuplicate(t *testing.T) {
	for _, c := range []struct {
		window       time.Duration
		first, again time.Time
		want         engine.Verdict
	}{
		{time.Hour, sunday, monday, engine.Duplicate},
		{time.Hour, sunday, sunday.Add(time.Hour), engine.Claimed},
		{time.Hour, monday, sunday, engine.Duplicate}, // the clock was set back
		{4 * 7 * 24 * time.Hour, noon, noon.AddDate(0, 0, 4*7).Add(-time.Millisecond), engine.Duplicate},
		{4 * 7 * 24 * time.Hour, noon, noon.AddDate(0, 0, 4*7), engine.Claimed},
	} {
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprint(c.window, " ", c.first, " ", inTx), func(t *testing.T) {
				now := &clock{t: c.first}
				e, _ := openMem(t, engine.Options{Clock: now.now, RetentionWeeks: 4})
				wantVerdict(t, claim(t, e, arriving("a", c.window)), engine.Claimed)
				now.set(c.again)
				if _, err := e.Retention().DropExpired(ctx); err != nil { // never drops what a window needs
					t.Fatal(err)
				}
				if !inTx {
					wantVerdict(t, claim(t, e, arriving("a", c.window)), c.want)
					return
				}
				update(t, e, func(tx *engine.Tx) { wantTx(t, tx, arriving("a", c.window), c.want) })
			})
		}
	}
}

// The clock shows each caller either side of Monday.
func TestOneOfAThousandClaimsWhileTheWeekChanges(t *testing.T) {
	var calls atomic.Int64
	e, _ := openMem(t, engine.Options{Clock: func() time.Time {
		if calls.Add(1)%2 == 0 {
			return sunday
		}
		return monday
	}})
	for round := range 5 {
		var claimed atomic.Int64
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				ev := arriving(fmt.Sprint("round ", round), time.Hour)
				var r engine.Result
				var err error
				if i%2 == 0 {
					r, err = e.TryClaim(ctx, ev)
				} else {
					err = e.Update(ctx, func(tx *engine.Tx) (err error) {
						r, err = tx.TryClaim(ev)
						return err
					})
				}
				if err == nil && r.Verdict == engine.Claimed {
					claimed.Add(1)
				}
			})
		}
		wg.Wait()
		if claimed.Load() != 1 {
			t.Fatalf("round %d: %d claimed the event", round, claimed.Load())
		}
	}
}

// An expired claim is replaced in its own week. A transaction checks adjacent weeks again when it
// commits, and a claim that another one holds there is in flight.
func TestAnExpiredClaimIsNotReplacedNextToALiveOneInANearWeek(t *testing.T) {
	c := &clock{t: sunday}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	near := windowed("a", time.Hour)
	near.Time, near.ApproximateTime = sunday, true
	exact := event("a")
	exact.Time = monday
	wantVerdict(t, claim(t, e, near), engine.Claimed)
	c.set(monday.Add(time.Hour))

	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, near, engine.Claimed)
		wantVerdict(t, claim(t, e, exact), engine.Claimed)
		return nil
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("next to a claim that was made meanwhile: %v", err)
	}
	if _, err := e.Admin().Forget(ctx, exact.Scope, exact.ID, exact.Time); err != nil {
		t.Fatal(err)
	}
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, exact, engine.Claimed)
		update(t, e, func(tx *engine.Tx) { wantTx(t, tx, near, engine.InFlight) })
		wantVerdict(t, claim(t, e, near), engine.InFlight)
	})
	wantVerdict(t, claim(t, e, near), engine.Duplicate)
}

func TestPrefetchReadsTheClockWhenTheEventIsClaimed(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	ev := windowed("a", time.Hour)
	wantVerdict(t, claim(t, e, ev), engine.Claimed)
	update(t, e, func(tx *engine.Tx) {
		if err := driver.Prefetch(tx, []engine.Event{ev, event("b")}); err != nil {
			t.Fatal(err)
		}
		c.set(noon.Add(time.Hour))
		wantTx(t, tx, ev, engine.Claimed)
		wantTx(t, tx, event("b"), engine.Claimed)
	})
}

func TestADeadLetterIsReplayedWithinItsWindowOnly(t *testing.T) {
	c := &clock{t: sunday}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	ev := arriving("a", time.Hour)
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, ev, engine.Claimed)
		c.set(monday) // the claim is found although its week has ended
		if rec, err := tx.DeadLetter(ev); err != nil || rec.State != engine.DeadLettered {
			t.Fatal(rec, err)
		}
	})
	letter := ev
	letter.Time = sunday
	update(t, e, func(tx *engine.Tx) { // its writes are rolled back
		sp, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		r, err := tx.TryReopen(letter, 0)
		if err != nil {
			t.Fatal(err)
		}
		wantLife(t, r, engine.Claimed, 1, sunday)
		if err := tx.RollbackTo(sp); err != nil {
			t.Fatal(err)
		}
	})
	c.set(sunday.Add(time.Hour))
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantLife(t, claim(t, e, letter), engine.Claimed, 1, sunday.Add(time.Hour))
		wantTx(t, tx, letter, engine.Duplicate)
		r, err := tx.TryReopen(letter, 0)
		wantVerdict(t, r, engine.Duplicate)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A transaction that depends on a dead letter conflicts when the claim is made again.
func TestAnExpiredDeadLetterThatWasSeenIsAConflict(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	ev := windowed("a", time.Hour)
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, ev, engine.Claimed)
		if _, err := tx.DeadLetter(ev); err != nil {
			t.Fatal(err)
		}
	})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, ev, engine.Duplicate)
		mustPut(t, tx, "k", "v")
		c.set(noon.Add(time.Hour))
		wantVerdict(t, claim(t, e, ev), engine.Claimed)
		return nil
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Errorf("the transaction ended with %v", err)
	}
}

func TestWindowsThatCannotBeKeptAreRejected(t *testing.T) {
	four, _ := openMem(t, engine.Options{RetentionWeeks: 4})
	all, _ := openMem(t, engine.Options{RetentionWeeks: engine.KeepAll})
	const week = 7 * 24 * time.Hour
	for _, c := range []struct {
		e     *engine.Engine
		ev    engine.Event
		field string
	}{
		{four, windowed("a", -time.Hour), "window"},
		{four, windowed("a", time.Millisecond-1), "window"},
		{four, windowed("a", 4*week+1), "window"},
		{four, windowed("b", 4*week), ""},
		{four, arriving("c", time.Millisecond), ""},
		{four, arriving("a", 0), "time"},
		{four, arriving("a", -1), "time"},
		{all, windowed("a", 1<<62), ""},
		{all, arriving("b", limits.ArrivalWindow), ""},
		{all, arriving("c", limits.ArrivalWindow+1), "window"},
	} {
		r, err := c.e.TryClaim(ctx, c.ev)
		var bad *engine.EventError
		switch {
		case c.field == "" && (err != nil || r.Verdict != engine.Claimed):
			t.Errorf("a window of %v: %v, %v", c.ev.Window, r.Verdict, err)
		case c.field != "" && (!errors.As(err, &bad) || bad.Field != c.field):
			t.Errorf("a window of %v: %v, want an error of the %s", c.ev.Window, err, c.field)
		}
	}
}

func TestAWindowEndsWithItsWeekIfThatIsDroppedOnRequest(t *testing.T) {
	const window = 4 * 7 * 24 * time.Hour
	e, _, c := openAt(t, engine.Options{RetentionWeeks: 4})
	mustExpect(t, e, []engine.Event{arriving("a", window), windowed("b", window)}, engine.Claimed)
	c.set(weeksLater(1))
	mustExpect(t, e, []engine.Event{arriving("a", window), windowed("b", window)}, engine.Duplicate)
	if _, err := e.Retention().DropWeek(ctx, weekOf(t, noon)); err != nil {
		t.Fatal(err)
	}
	mustExpect(t, e, []engine.Event{windowed("b", window)}, engine.TooOld)
	mustExpect(t, e, []engine.Event{arriving("a", window)}, engine.Claimed)
}
