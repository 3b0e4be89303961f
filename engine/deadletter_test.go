package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// deadLetter claims an event and dead-letters it, in a transaction of its own.
func deadLetter(t testing.TB, e *engine.Engine, ev engine.Event) engine.ClaimRecord {
	t.Helper()
	var rec engine.ClaimRecord
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, ev, engine.Claimed)
		rec = mustLetter(t, tx, ev)
	})
	return rec
}

func mustLetter(t testing.TB, tx *engine.Tx, ev engine.Event) engine.ClaimRecord {
	t.Helper()
	rec, err := tx.DeadLetter(ev)
	if err != nil || rec.State != engine.DeadLettered {
		t.Fatalf("dead-lettering %q: %+v, %v", ev.ID, rec, err)
	}
	return rec
}

// wantReclaim fails unless a replay gets the verdict, and a claim of that generation.
func wantReclaim(t testing.TB, tx *engine.Tx, ev engine.Event, names uint64, want engine.Verdict, generation uint64) {
	t.Helper()
	r, err := tx.TryReopen(ev, names)
	if err != nil || r.Verdict != want || r.Record.Generation != generation {
		t.Fatalf("replay of %q, generation %d: %v of %+v, %v; want %v of generation %d", ev.ID, names, r.Verdict, r.Record, err, want, generation)
	}
}

// replay handles a dead letter, in a transaction of its own.
func replay(t testing.TB, e *engine.Engine, ev engine.Event, generation uint64, want engine.Verdict) {
	t.Helper()
	update(t, e, func(tx *engine.Tx) {
		r, err := tx.TryReopen(ev, generation)
		if err != nil || r.Verdict != want {
			t.Fatalf("replay of %q, generation %d: %v, %v; want %v", ev.ID, generation, r.Verdict, err, want)
		}
	})
}

func wantRecord(t testing.TB, e *engine.Engine, ev engine.Event, want engine.ClaimRecord) {
	t.Helper()
	for range 2 { // the second time it may come from the cache
		if r := claim(t, e, ev); r.Verdict != engine.Duplicate || r.Record != want {
			t.Fatalf("%q: got %v of %+v, want a duplicate of %+v", ev.ID, r.Verdict, r.Record, want)
		}
	}
	if rec, found, err := e.Admin().Lookup(ctx, ev.Scope, ev.ID, ev.Time); err != nil || !found || rec != want {
		t.Fatalf("%q: Lookup shows %+v %v %v, want %+v", ev.ID, rec, found, err, want)
	}
}

func from(ev engine.Event, offset int64) engine.Event {
	ev.Origin = engine.Origin{Topic: "replays", Partition: 9, Offset: offset}
	return ev
}

func TestDuplicateOfADeadLetteredClaimHasThatState(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	want := deadLetter(t, e, event("a"))
	if want != (engine.ClaimRecord{State: engine.DeadLettered, FirstSeen: noon, Origin: event("a").Origin}) {
		t.Fatalf("told %+v", want)
	}
	for _, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{})} {
		wantRecord(t, e, from(event("a"), 1), want)
		update(t, e, func(tx *engine.Tx) { wantTx(t, tx, event("a"), engine.Duplicate) })
	}
	if s := want.State.String(); s != "dead_lettered" {
		t.Error(s)
	}
}

func TestOnlyTheTransactionThatClaimedMayDeadLetter(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	claim(t, e, event("done"))
	refused := func(tx *engine.Tx, ev engine.Event) {
		t.Helper()
		if rec, err := tx.DeadLetter(ev); !errors.Is(err, engine.ErrNotClaimed) || rec != (engine.ClaimRecord{}) {
			t.Errorf("%q: %+v, %v", ev.ID, rec, err)
		}
	}
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("done"), engine.Duplicate)
		refused(tx, event("done"))
		refused(tx, event("never claimed"))
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		wantTx(t, tx, event("rolled back"), engine.Claimed)
		if err := tx.RollbackTo(s); err != nil {
			t.Fatal(err)
		}
		refused(tx, event("rolled back"))
		wantTx(t, tx, event("mine"), engine.Claimed)
		update(t, e, func(other *engine.Tx) { refused(other, event("mine")) })
		refused(tx, at("mine", weeksLater(-1)))
		var wrong *engine.EventError
		if _, err := tx.DeadLetter(event("")); !errors.As(err, &wrong) || wrong.Field != "id" {
			t.Error(err)
		}
	})
	if r := claim(t, e, event("done")); r.Record.State != engine.Done {
		t.Errorf("%+v", r.Record)
	}
}

func TestDeadLetteringTwiceIsOnce(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("a"), engine.Claimed)
		rec := mustLetter(t, tx, event("a"))
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		if again := mustLetter(t, tx, event("a")); again != rec {
			t.Errorf("%+v, then %+v", rec, again)
		}
		if err := tx.RollbackTo(s); err != nil { // undoes the second, which did nothing
			t.Fatal(err)
		}
		if r, err := tx.TryClaim(event("a")); err != nil || r.Verdict != engine.Duplicate || r.Record != rec {
			t.Errorf("the transaction itself gets %+v, %v", r, err)
		}
		wantReclaim(t, tx, event("a"), 0, engine.Duplicate, 0) // it is not durable
	})
	if r := claim(t, e, event("a")); r.Record.State != engine.DeadLettered {
		t.Errorf("%+v", r.Record)
	}
}

func TestRollbackToASavepointUndoesLaterDeadLetters(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	deadLetter(t, e, event("replayed"))
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("before"), engine.Claimed)
		mustLetter(t, tx, event("before"))
		wantTx(t, tx, event("undone"), engine.Claimed)
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		mustLetter(t, tx, event("undone"))
		wantTx(t, tx, event("after"), engine.Claimed)
		mustLetter(t, tx, event("after"))
		wantReclaim(t, tx, event("replayed"), 0, engine.Claimed, 1)
		if err := tx.RollbackTo(s); err != nil {
			t.Fatal(err)
		}
		update(t, e, func(other *engine.Tx) { // no transaction holds them any more
			wantTx(t, other, event("after"), engine.Claimed)
			wantReclaim(t, other, event("replayed"), 0, engine.Claimed, 1)
		})
	})
	for id, want := range map[string]engine.State{"before": engine.DeadLettered, "undone": engine.Done, "after": engine.Done, "replayed": engine.Done} {
		if r := claim(t, e, event(id)); r.Verdict != engine.Duplicate || r.Record.State != want {
			t.Errorf("%q: %v of %+v, want %v", id, r.Verdict, r.Record, want)
		}
	}
	verifyClean(t, e, 4)
}

func TestReplayReopensADeadLetteredClaimOnce(t *testing.T) {
	for _, cache := range []int{-1, 100} {
		t.Run(fmt.Sprint("cache ", cache), func(t *testing.T) {
			e, m, c := openAt(t, engine.Options{RecentClaims: cache})
			first := deadLetter(t, e, event("a"))
			wantRecord(t, e, event("a"), first)
			c.set(noon.AddDate(0, 0, 1))
			replay(t, e, from(event("a"), 1), 1, engine.Duplicate) // not its generation
			wantRecord(t, e, event("a"), first)

			want := engine.ClaimRecord{State: engine.Done, Generation: 1, FirstSeen: noon, Origin: event("a").Origin}
			update(t, e, func(tx *engine.Tx) {
				if r, err := tx.TryReopen(from(event("a"), 2), 0); err != nil || r.Verdict != engine.Claimed || r.Record != want {
					t.Errorf("%+v, %v", r, err)
				}
				wantReclaim(t, tx, from(event("a"), 3), 0, engine.Duplicate, 1)
				wantRecord(t, e, event("a"), first) // for other callers it is unchanged
			})
			for _, e := range []*engine.Engine{e, open(t, m.CrashClone(0), engine.Options{RecentClaims: cache})} {
				wantRecord(t, e, event("a"), want)
				for generation := range uint64(3) {
					replay(t, e, from(event("a"), 4), generation, engine.Duplicate)
				}
				verifyClean(t, e, 1)
			}
		})
	}
}

func TestReplayThatFailsLeavesTheClaimDeadLettered(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	first := deadLetter(t, e, event("a"))
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantReclaim(t, tx, event("a"), 0, engine.Claimed, 1)
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	wantRecord(t, e, event("a"), first)
	update(t, e, func(tx *engine.Tx) { // it fails permanently once more
		wantReclaim(t, tx, event("a"), 0, engine.Claimed, 1)
		mustLetter(t, tx, event("a"))
	})
	second := first
	second.Generation = 1
	wantRecord(t, e, event("a"), second)
	replay(t, e, event("a"), 0, engine.Duplicate) // the old letter reopens nothing
	replay(t, e, event("a"), 1, engine.Claimed)
	verifyClean(t, e, 1)
}

func TestReplayWithoutItsClaimIsJudgedLikeAnyEvent(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		wantReclaim(t, tx, event("forged"), 7, engine.Claimed, 0)
		wantReclaim(t, tx, event("forged"), 0, engine.Duplicate, 0)
		wantReclaim(t, tx, at("old", weeksLater(-9)), 0, engine.TooOld, 0)
		wantReclaim(t, tx, at("new", weeksLater(1)), 0, engine.TooNew, 0)
		var wrong *engine.EventError
		if r, err := tx.TryReopen(event(""), 0); !errors.As(err, &wrong) || r.Verdict != engine.Failed {
			t.Error(r, err)
		}
	})
	claim(t, e, event("done"))
	replay(t, e, event("done"), 0, engine.Duplicate)
	wantVerdict(t, claim(t, e, event("forged")), engine.Duplicate)
	verifyClean(t, e, 2)
}

func TestSecondReplayIsInFlightWhileTheFirstIsOpen(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	first := deadLetter(t, e, event("a"))
	update(t, e, func(tx *engine.Tx) {
		wantReclaim(t, tx, event("a"), 0, engine.Claimed, 1)
		update(t, e, func(other *engine.Tx) {
			wantReclaim(t, other, event("a"), 0, engine.InFlight, 0)
			wantReclaim(t, other, event("a"), 1, engine.Duplicate, 0)
		})
		wantRecord(t, e, event("a"), first) // a delivery that is no replay does not wait
		if _, err := e.Admin().Forget(ctx, "billing", []byte("a"), noon); !errors.Is(err, engine.ErrConflict) {
			t.Error("forgetting a claim that is being reopened:", err)
		}
	})
}

func TestTransactionThatSawADeadLetterConflictsWithItsReopeningOrRemoval(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, e *engine.Engine){
		"opened":    func(t *testing.T, e *engine.Engine) { replay(t, e, event("a"), 0, engine.Claimed) },
		"forgotten": func(t *testing.T, e *engine.Engine) { forget(t, e, event("a")) },
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			deadLetter(t, e, event("a"))
			for _, writes := range []bool{true, false} {
				err := e.Update(ctx, func(tx *engine.Tx) error {
					wantTx(t, tx, event("a"), engine.Duplicate)
					change(t, e)
					if writes {
						mustPut(t, tx, "dead", "yes")
					}
					return nil
				})
				if !errors.Is(err, engine.ErrConflict) {
					t.Errorf("it writes: %v: %v", writes, err)
				}
				wantKept(t, e, map[string]string{"dead": "absent"})
				_, _ = e.Admin().Forget(ctx, "billing", []byte("a"), noon)
				deadLetter(t, e, event("a"))
			}
			update(t, e, func(tx *engine.Tx) { // earlier changes do not count
				change(t, e)
				if r, err := tx.TryClaim(event("a")); err != nil || r.Record.State == engine.DeadLettered {
					t.Error(r, err)
				}
				mustPut(t, tx, "dead", "no")
			})
			wantKept(t, e, map[string]string{"dead": "no"})
		})
	}
}

func TestDeadLetterIsReadAsOfItsFirstVerdict(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	deadLetter(t, e, event("a"))
	again := func(generation uint64) {
		t.Helper()
		update(t, e, func(tx *engine.Tx) {
			wantReclaim(t, tx, event("a"), generation, engine.Claimed, generation+1)
			mustLetter(t, tx, event("a"))
		})
	}
	update(t, e, func(tx *engine.Tx) { // reopened before the verdict: no conflict
		again(0)
		wantReclaim(t, tx, event("a"), 0, engine.Duplicate, 1)
		mustPut(t, tx, "k", "1")
	})
	err := e.Update(ctx, func(tx *engine.Tx) error { // reopened after the first verdict
		wantReclaim(t, tx, event("a"), 0, engine.Duplicate, 1)
		again(1)
		wantReclaim(t, tx, event("a"), 0, engine.Duplicate, 2)
		return tx.Put([]byte("k"), []byte("2"))
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	wantKept(t, e, map[string]string{"k": "1"})
}

func TestConcurrentReplaysReopenEachGenerationOnce(t *testing.T) {
	e, m := openMem(t, engine.Options{RecentClaims: 2})
	jitter(m, 1)
	deadLetter(t, e, event("a"))
	var mu sync.Mutex
	opened := map[uint64]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for generation := uint64(0); generation < 40; {
				var r engine.Result
				err := e.Update(ctx, func(tx *engine.Tx) (err error) {
					if r, err = tx.TryReopen(event("a"), generation); err == nil && r.IsClaimed() {
						_, err = tx.DeadLetter(event("a"))
					}
					return err
				})
				switch {
				case errors.Is(err, engine.ErrConflict), err == nil && r.Verdict == engine.InFlight:
				case err != nil:
					t.Errorf("generation %d: %v", generation, err)
					return
				case r.IsClaimed():
					mu.Lock()
					opened[generation]++
					mu.Unlock()
					generation++
				case r.Verdict == engine.Duplicate && r.Record.State == engine.DeadLettered && r.Record.Generation > generation:
					generation = r.Record.Generation
				default:
					t.Errorf("generation %d: told %v of %+v", generation, r.Verdict, r.Record)
					return
				}
			}
		})
	}
	wg.Wait()
	for generation := range uint64(40) {
		if opened[generation] != 1 {
			t.Errorf("generation %d was reopened %d times", generation, opened[generation])
		}
	}
	verifyClean(t, e, 1)
}

func TestReplayOfAClaimThatIsBeingForgottenReopensNothing(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	deadLetter(t, e, event("a"))
	reached, forgetting := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(forgetting) })
	t.Cleanup(goOn)
	blocked := m.Calls(storetest.OpApply) + 1
	m.Before(storetest.OpApply, func(call int) error {
		if call == blocked {
			close(reached)
			<-forgetting
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() { forget(t, e, event("a")) })
	receive(t, reached) // the removal was decided, and the store does not show it
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantReclaim(t, tx, event("a"), 0, engine.Claimed, 1)
		mustPut(t, tx, "opened", "yes")
		wg.Go(func() { // the commit may be decided before; it fails in either case
			e.AwaitTaken(t, 1)
			goOn()
		})
		return nil
	})
	wg.Wait()
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	wantKept(t, e, map[string]string{"opened": "absent"})
	replay(t, e, event("a"), 0, engine.Claimed) // a first claim
	if r := claim(t, e, event("a")); r.Record.Generation != 0 {
		t.Errorf("%+v", r.Record)
	}
	verifyClean(t, e, 1)
}

func TestReopenedClaimsAreCountedOnceWhereverTheFiltersComeFrom(t *testing.T) {
	c := &clock{t: noon}
	o := engine.Options{ExpectedPerWeek: 64, Clock: c.now}.WithSnapshotEvery(8)
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, o)
	const n = 30
	check := func(e *engine.Engine, opened int) {
		t.Helper()
		verifyClean(t, e, n)
		weeks, err := e.Weeks(ctx)
		if err != nil || len(weeks) != 1 || weeks[0].Claims != n {
			t.Fatal(weeks, err)
		}
		for i := range n {
			want := uint64(0)
			if i < opened {
				want = 1
			}
			if r := claim(t, e, event(fmt.Sprint(i))); r.Verdict != engine.Duplicate || r.Record.Generation != want {
				t.Fatalf("claim %d with %d reopened: %v of %+v", i, opened, r.Verdict, r.Record)
			}
		}
	}
	for i := range n {
		deadLetter(t, e, event(fmt.Sprint(i)))
	}
	for i := range n {
		replay(t, e, event(fmt.Sprint(i)), 0, engine.Claimed)
		if i%7 == 0 {
			eventually(t, "the snapshot in progress", func() bool { return !e.SnapshotRunning() })
			check(open(t, m.CrashClone(i%2), o), i+1)
		}
	}
	if m.Calls(storetest.OpWriteSidecar) < 2 {
		t.Error("too few snapshots for this test")
	}
	check(e, n)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, m.CrashClone(0), o), n)

}

func TestReplayIntoADroppedWeekFails(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{RetentionWeeks: 1})
	old := at("a", weeksLater(-1))
	deadLetter(t, e, old)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantReclaim(t, tx, old, 0, engine.Claimed, 1)
		mustPut(t, tx, "opened", "yes")
		_, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek())
		return err
	})
	if !errors.Is(err, engine.ErrWeekDropped) {
		t.Error(err)
	}
	wantKept(t, e, map[string]string{"opened": "absent"})
	replay(t, e, old, 0, engine.TooOld)
	verifyClean(t, e, 0)
}

func TestDeadLetterAndReplayAreAtomicAcrossAPowerFailure(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	deadLetter(t, e, event("replayed"))
	m.HoldSyncs()
	var wg sync.WaitGroup
	commit := func(name string, fn func(tx *engine.Tx) error) {
		before := m.Unsynced()
		wg.Go(func() {
			err := e.Update(ctx, func(tx *engine.Tx) error {
				return errors.Join(fn(tx), tx.Put([]byte(name), nil))
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		for m.Unsynced() == before {
			runtime.Gosched()
		}
	}
	commit("letter", func(tx *engine.Tx) error {
		_, err := tx.TryClaim(event("a"))
		_, lettered := tx.DeadLetter(event("a"))
		return errors.Join(err, lettered)
	})
	commit("opened", func(tx *engine.Tx) error {
		_, err := tx.TryReopen(event("replayed"), 0)
		return err
	})
	for keep := range 3 {
		e := open(t, m.CrashClone(keep), engine.Options{})
		wantKept(t, e, map[string]string{"letter": have(keep >= 1), "opened": have(keep >= 2)})
		rec, found, err := e.Admin().Lookup(ctx, "billing", []byte("a"), noon)
		if err != nil || found != (keep >= 1) || found && rec.State != engine.DeadLettered {
			t.Errorf("%d batches survive: %+v %v %v", keep, rec, found, err)
		}
		replay(t, e, event("replayed"), 0, map[bool]engine.Verdict{false: engine.Claimed, true: engine.Duplicate}[keep >= 2])
		verifyClean(t, e, 1+map[bool]int{true: 1}[keep >= 1])
	}
	m.ReleaseSyncs()
	wg.Wait()
}

func have(there bool) string {
	if there {
		return ""
	}
	return "absent"
}
