package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// stamped returns an event whose time is the log's, the given number of weeks after noon.
func stamped(id string, weeks int) engine.Event {
	ev := at(id, weeksLater(weeks))
	ev.ApproximateTime = true
	ev.Origin.Offset = int64(100 + weeks)
	return ev
}

// ways are all calls that return a verdict for one event.
var ways = map[string]func(t testing.TB, e *engine.Engine, ev engine.Event) engine.Result{
	"TryClaim": func(t testing.TB, e *engine.Engine, ev engine.Event) engine.Result { return claim(t, e, ev) },
	"TryClaimBatch": func(t testing.TB, e *engine.Engine, ev engine.Event) engine.Result {
		rs, err := e.TryClaimBatch(ctx, []engine.Event{ev})
		if err != nil {
			t.Fatal(err)
		}
		return rs[0]
	},
	"Tx.TryClaim": func(t testing.TB, e *engine.Engine, ev engine.Event) (r engine.Result) {
		update(t, e, func(tx *engine.Tx) { r, _ = tx.TryClaim(ev) })
		return r
	},
	"Tx.TryReopen": func(t testing.TB, e *engine.Engine, ev engine.Event) (r engine.Result) {
		update(t, e, func(tx *engine.Tx) { r, _ = tx.TryReopen(ev, 0) })
		return r
	},
}

// eachWay runs fn with each of the ways.
func eachWay(t *testing.T, fn func(t *testing.T, judge func(e *engine.Engine, ev engine.Event) engine.Result)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			fn(t, func(e *engine.Engine, ev engine.Event) engine.Result {
				t.Helper()
				return way(t, e, ev)
			})
		})
	}
}

func TestClaimInAnAdjacentWeekCountsForApproximateTimesOnly(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		for _, cache := range []int{-1, 100} {
			e, m, _ := openAt(t, engine.Options{RetentionWeeks: 8, RecentClaims: cache})
			for weeks := -6; weeks <= 0; weeks++ {
				id := fmt.Sprint("id", weeks)
				first := judge(e, at(id, weeksLater(-3)))
				wantVerdict(t, first, engine.Claimed)
				far := weeks < -4 || weeks > -2
				for range 2 { // the second time it may come from the cache
					r := judge(e, stamped(id, weeks))
					if far {
						wantVerdict(t, r, engine.Claimed)
						break
					}
					if r.Verdict != engine.Duplicate || r.Record != first.Record {
						t.Fatalf("%d weeks from its claim: %v of %+v", weeks+3, r.Verdict, r.Record)
					}
				}
				other := stamped(id, weeks)
				other.Scope = "other"
				wantVerdict(t, judge(e, other), engine.Claimed)
			}
			again := open(t, m.CrashClone(0), engine.Options{RetentionWeeks: 8, RecentClaims: cache})
			for weeks := -4; weeks <= -2; weeks++ {
				wantVerdict(t, judge(again, stamped("id-6", weeks)), engine.Duplicate)
			}
			// with a time of its own it is another event
			wantVerdict(t, judge(e, at("id-3", weeksLater(-2))), engine.Claimed)
			verifyClean(t, e, 7+4+7+1)
		}
	})
}

func TestEventSentAgainAcrossMondayIsADuplicate(t *testing.T) {
	monday := weekOf(t, noon).Start()
	for name, times := range map[string][2]time.Time{
		"forwards":  {monday.Add(-time.Millisecond), monday},
		"backwards": {monday, monday.Add(-time.Millisecond)},
		"in Tokyo":  {monday.Add(-time.Hour).In(time.FixedZone("", 9*3600)), monday.Add(time.Hour).In(time.FixedZone("", 9*3600))},
	} {
		eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
			e, _ := openMem(t, engine.Options{})
			for i, want := range []engine.Verdict{engine.Claimed, engine.Duplicate} {
				ev := at("a", times[i])
				ev.ApproximateTime = true
				if r := judge(e, ev); r.Verdict != want {
					t.Errorf("%s: delivery %d is told %v", name, i, r.Verdict)
				}
			}
		})
	}
}

func TestAdjacentWeeksWithinABatchAreOneEvent(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var events []engine.Event
	for i := range 600 { // several parts of a batch
		events = append(events, stamped(fmt.Sprint(i), -i%2))
	}
	for i := range 600 {
		events = append(events, stamped(fmt.Sprint(i), -1+i%2))
	}
	rs, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if i < 600 {
			wantVerdict(t, r, engine.Claimed)
		} else if r.Verdict != engine.Duplicate || r.Record != rs[i-600].Record {
			t.Fatalf("%d: %v of %+v", i, r.Verdict, r.Record)
		}
	}
	verifyClean(t, e, 600)
}

func TestAdjacentClaimInABatchThatIsBeingAppliedIsFound(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	blocked, reached, goOn := m.Calls(storetest.OpApply)+1, make(chan struct{}), make(chan struct{})
	m.Before(storetest.OpApply, func(call int) error {
		if call == blocked {
			close(reached)
			<-goOn
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() { wantClaimed(t, e, stamped("a", -1)) })
	receive(t, reached)
	// in one batch: the group after the next one is not decided before the first is applied
	wg.Go(func() {
		results, err := e.TryClaimBatch(ctx, []engine.Event{stamped("a", 0), stamped("a", -2), stamped("a", -1)})
		if err != nil {
			t.Error(err)
		}
		for i, r := range results {
			if r.Verdict != engine.Duplicate {
				t.Errorf("event %d: %v", i, r.Verdict)
			}
		}
	})
	// the batch is probably decided by then; if not, it is judged after the first was applied
	for range 1000 {
		runtime.Gosched()
	}
	close(goOn)
	wg.Wait()
	verifyClean(t, e, 1)
}

// wantClaimed is for goroutines.
func wantClaimed(t testing.TB, e *engine.Engine, ev engine.Event) {
	if r, err := e.TryClaim(ctx, ev); r.Verdict != engine.Claimed || err != nil {
		t.Errorf("%q: %v, %v", ev.ID, r.Verdict, err)
	}
}

func TestAdjacentClaimHeldByATransactionIsInFlight(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		for _, approximate := range []bool{false, true} {
			e, _ := openMem(t, engine.Options{})
			held := stamped("a", -2)
			held.ApproximateTime = approximate
			update(t, e, func(tx *engine.Tx) {
				s, err := tx.Savepoint()
				if err != nil {
					t.Fatal(err)
				}
				wantTx(t, tx, held, engine.Claimed)
				for _, weeks := range []int{-1, -3} {
					wantVerdict(t, judge(e, stamped("a", weeks)), engine.InFlight)
				}
				wantVerdict(t, judge(e, stamped("a", 0)), engine.Claimed) // two weeks away
				if err := tx.RollbackTo(s); err != nil {
					t.Fatal(err)
				}
				wantVerdict(t, judge(e, stamped("a", -3)), engine.Claimed)
			})
			verifyClean(t, e, 2)
		}
	})
}

func TestTransactionConflictsIfAnAdjacentWeekIsClaimedMeanwhile(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		for _, weeks := range []int{-1, 1, -2} {
			e, _ := openMem(t, engine.Options{})
			err := e.Update(ctx, func(tx *engine.Tx) error {
				wantTx(t, tx, stamped("a", -1), engine.Claimed)
				mustPut(t, tx, "k", "1")
				wantVerdict(t, judge(e, at("a", weeksLater(-1+weeks))), map[bool]engine.Verdict{true: engine.TooNew, false: engine.Claimed}[weeks > 1])
				return nil
			})
			near := weeks != -2
			if errors.Is(err, engine.ErrConflict) != near || !near && err != nil {
				t.Errorf("%d weeks away: %v", weeks, err)
			}
			wantKept(t, e, map[string]string{"k": map[bool]string{true: "absent", false: "1"}[near]})
			verifyClean(t, e, map[bool]int{true: 1, false: 2}[near])
		}
	})
}

func TestAdjacentWeeksWithinATransactionAreOneEvent(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, stamped("before", 0), engine.Claimed)
		first, err := tx.TryClaim(stamped("a", -1))
		if err != nil || !first.IsClaimed() {
			t.Fatal(first, err)
		}
		for _, weeks := range []int{0, -2} {
			if r, err := tx.TryClaim(stamped("a", weeks)); err != nil || r.Verdict != engine.Duplicate || r.Record != first.Record {
				t.Errorf("%d: %v of %+v, %v", weeks, r.Verdict, r.Record, err)
			}
		}
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			wantTx(t, tx, stamped(fmt.Sprint("b", i), -i%2), engine.Claimed)
			wantTx(t, tx, at(fmt.Sprint("c", i), noon), engine.Claimed)
		}
		if err := tx.RollbackTo(s); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			wantTx(t, tx, stamped(fmt.Sprint("b", i), -1+i%2), engine.Claimed)
			wantTx(t, tx, stamped(fmt.Sprint("b", i), -i%2), engine.Duplicate)
		}
		wantTx(t, tx, at("a", weeksLater(-2)), engine.Claimed) // with its own time it is another event
		wantTx(t, tx, stamped("before", -1), engine.Duplicate)
	})
	verifyClean(t, e, 8)
}

func TestDroppedAdjacentWeekDoesNotCount(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		e, _, _ := openAt(t, engine.Options{RetentionWeeks: 3})
		for _, id := range []string{"a", "b"} {
			wantVerdict(t, judge(e, stamped(id, -3)), engine.Claimed)
		}
		wantVerdict(t, judge(e, stamped("a", -2)), engine.Duplicate) // and in the cache
		wantVerdict(t, judge(e, stamped("a", -2)), engine.Duplicate)
		err := e.Update(ctx, func(tx *engine.Tx) error {
			wantTx(t, tx, stamped("b", -1), engine.Claimed)
			if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); err != nil {
				return err
			}
			wantVerdict(t, judge(e, stamped("a", -2)), engine.Claimed)
			wantVerdict(t, judge(e, stamped("a", -3)), engine.TooOld)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		verifyClean(t, e, 2)
	})
}

// A claim counts for an event on arrival also while the filters are rebuilt, however old its week is: also
// one that is made meanwhile.
func TestClaimsOfOldWeeksCountOnArrivalWhileFiltersAreRebuilt(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		o := small
		o.RetentionWeeks = engine.KeepAll
		e, m, c := openAt(t, o)
		mustExpect(t, e, inWeeks(0, 0, 20), engine.Claimed)
		for _, weeks := range []int{7, 53, 60, 500} {
			wantVerdict(t, claim(t, e, at(fmt.Sprint(weeks), weeksLater(-weeks))), engine.Claimed)
		}
		release := make(chan struct{})
		scanOn := sync.OnceFunc(func() { close(release) })
		m = (&past{Mem: m, e: e}).lost(t)
		scans := heldScan(m, release)
		scans.journal = func(uint64, func(uint64, []byte) error) error { return nil } // was trimmed
		o.Clock = c.now
		e = open(t, scans, o)
		t.Cleanup(scanOn)
		if !stats(t, e).FilterRebuilding {
			t.Fatal("the filters are loaded")
		}
		wantVerdict(t, claim(t, e, at("70", weeksLater(-70))), engine.Claimed)
		check := func() {
			t.Helper()
			for _, weeks := range []int{7, 53, 60, 70, 500} {
				wantVerdict(t, judge(e, arriving(fmt.Sprint(weeks), time.Hour)), engine.Duplicate)
			}
		}
		check()
		scanOn()
		awaitTrust(t, e)
		check()
	})
}

func TestAdjacentClaimsAreFoundInTheStoreWhileFiltersAreRebuilt(t *testing.T) {
	eachWay(t, func(t *testing.T, judge func(*engine.Engine, engine.Event) engine.Result) {
		o := small
		o.RetentionWeeks = 3
		e, m, c := openAt(t, o)
		for _, weeks := range []int{-3, -1} {
			wantVerdict(t, claim(t, e, stamped(fmt.Sprint(weeks), weeks)), engine.Claimed)
		}
		mustExpect(t, e, inWeeks(0, 0, 20), engine.Claimed)
		release, reached, dropping := make(chan struct{}), make(chan struct{}), make(chan struct{})
		goOn, scanOn := sync.OnceFunc(func() { close(dropping) }), sync.OnceFunc(func() { close(release) })
		m = (&past{Mem: m, e: e}).lost(t)
		scans := heldScan(m, release)
		scans.journal = func(uint64, func(uint64, []byte) error) error { return nil } // was trimmed
		o.Clock = c.now
		e = open(t, scans, o)
		t.Cleanup(func() { goOn(); scanOn() })
		if !stats(t, e).FilterRebuilding {
			t.Fatal("the filters are loaded")
		}
		wantVerdict(t, judge(e, stamped("-1", 0)), engine.Duplicate)
		wantVerdict(t, judge(e, stamped("-3", -2)), engine.Duplicate)
		c.set(weeksLater(1))
		m.Before(storetest.OpDrop, func(int) error {
			close(reached)
			<-dropping
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if r, err := e.Retention().DropExpired(ctx); err != nil || r.Buckets != 1 {
				t.Errorf("%+v %v", r, err)
			}
		})
		receive(t, reached) // the week is dropped, and its claims still exist
		wantVerdict(t, judge(e, stamped("-3", -2)), engine.Claimed)
		wantVerdict(t, judge(e, stamped("-1", -2)), engine.Duplicate)
		goOn()
		wg.Wait()
		scanOn()
		awaitTrust(t, e)
		verifyClean(t, e, 22)
	})
}

func TestAdjacentClaimThatIsCommittingIsInFlight(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	done := make(chan error, 1)
	m.HoldSyncs()
	t.Cleanup(m.ReleaseSyncs)
	go func() {
		done <- e.Update(ctx, func(tx *engine.Tx) error {
			_, err := tx.TryClaim(stamped("a", -1))
			return err
		})
	}()
	awaitHeld(t, m)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, stamped("a", 0), engine.InFlight) // a Duplicate would have to wait
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Error(err)
	}
	m.ReleaseSyncs()
	if err := receive(t, done); err != nil {
		t.Error(err)
	}
	wantVerdict(t, claim(t, e, stamped("a", 0)), engine.Duplicate)
}

func TestAdjacentWeeksEndWhereTheWeeksEnd(t *testing.T) {
	for _, week := range []weekbucket.Week{weekbucket.Min, weekbucket.Max} {
		c := &clock{t: week.Start().Add(time.Hour)}
		e, _ := openMem(t, engine.Options{Clock: c.now, RetentionWeeks: engine.KeepAll})
		ev := stamped("a", 0)
		ev.Time = c.now()
		for name, way := range ways {
			ev.ID = []byte(name)
			wantVerdict(t, way(t, e, ev), engine.Claimed)
			wantVerdict(t, way(t, e, ev), engine.Duplicate)
		}
	}
}

func TestReplayReopensTheClaimOfItsOwnWeekOnly(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	deadLetter(t, e, stamped("a", -1))
	claim(t, e, at("a", noon))
	update(t, e, func(tx *engine.Tx) {
		wantReclaim(t, tx, stamped("a", -2), 0, engine.Duplicate, 0)
		wantTx(t, tx, at("a", weeksLater(-2)), engine.Claimed)
		wantReclaim(t, tx, stamped("a", -1), 0, engine.Claimed, 1) // whatever the adjacent weeks contain
	})
	verifyClean(t, e, 3)
}

func TestTransactionThatSawAnAdjacentDeadLetterConflictsWithItsReopening(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	deadLetter(t, e, stamped("a", -1))
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, stamped("a", 0), engine.Duplicate)
		replay(t, e, stamped("a", -1), 0, engine.Claimed)
		return tx.Put([]byte("k"), nil)
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
}

func TestOfConcurrentAdjacentEventsOneIsClaimed(t *testing.T) {
	eachSeed(t, 20, func(t *testing.T, rnd *rand.Rand, seed uint64) {
		m := storetest.NewMem(storage.Identity{})
		jitter(m, seed)
		e := open(t, m, engine.Options{RecentClaims: []int{-1, 1, 100}[rnd.IntN(3)]})
		const ids = 12
		var mu sync.Mutex
		won := map[string]int{}
		var wg sync.WaitGroup
		for client := range 4 {
			rnd := rand.New(rand.NewPCG(seed, uint64(client)))
			wg.Go(func() {
				for _, i := range rnd.Perm(ids) {
					ev := stamped(fmt.Sprint(i), -rnd.IntN(2))
					if first, err := judgeSomehow(e, rnd, ev); err != nil {
						t.Errorf("%d: %v", i, err)
					} else if first {
						mu.Lock()
						won[string(ev.ID)]++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		for i := range ids {
			if n := won[fmt.Sprint(i)]; n != 1 {
				t.Errorf("event %d was claimed %d times", i, n)
			}
		}
		verifyClean(t, e, ids)
	})
}

// judgeSomehow retries an event until some caller has claimed it.
func judgeSomehow(e *engine.Engine, rnd *rand.Rand, ev engine.Event) (first bool, err error) {
	for {
		var r engine.Result
		switch rnd.IntN(3) {
		case 0:
			r, err = e.TryClaim(ctx, ev)
		case 1:
			rs, berr := e.TryClaimBatch(ctx, []engine.Event{ev})
			if err = berr; err == nil {
				r = rs[0]
			}
		case 2:
			fail, ahead := rnd.IntN(3) == 0, rnd.IntN(2) == 0
			err = e.Update(ctx, func(tx *engine.Tx) (err error) {
				if ahead {
					if err := driver.Prefetch(tx, []engine.Event{ev}); err != nil {
						return err
					}
				}
				if r, err = tx.TryClaim(ev); err == nil && fail {
					err = errBoom
				}
				return err
			})
			if errors.Is(err, errBoom) || errors.Is(err, engine.ErrConflict) {
				continue
			}
		}
		if err != nil || r.Verdict != engine.InFlight {
			return r.IsClaimed(), err
		}
	}
}

// If a transaction has claimed an event and the store has a claim in an adjacent week, the
// transaction gets its own claim.
func TestOwnClaimPrecedesTheStores(t *testing.T) {
	for name, weeks := range map[string]int{"in the same week": 0, "in the week before": -1} {
		e, _ := openMem(t, engine.Options{})
		stored, own, again := stamped("a", 1), from(stamped("a", weeks), 9), stamped("a", 0)
		stored.ApproximateTime, own.ApproximateTime, again.ApproximateTime = false, false, true
		stored.Time, own.Time, again.Time = stored.Time.AddDate(0, 0, -14), own.Time.AddDate(0, 0, -14), again.Time.AddDate(0, 0, -14)
		wantClaimed(t, e, from(stored, 8))
		update(t, e, func(tx *engine.Tx) {
			wantTx(t, tx, own, engine.Claimed)
			if r, err := tx.TryClaim(again); err != nil || r.Verdict != engine.Duplicate || r.Record.Origin.Offset != 9 {
				t.Errorf("%s: told %+v, %v", name, r, err)
			}
		})
	}
}
