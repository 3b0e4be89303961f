package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

var errBoom = errors.New("boom")

func mustPut(t testing.TB, tx *engine.Tx, key, value string) {
	t.Helper()
	if err := tx.Put([]byte(key), []byte(value)); err != nil {
		t.Fatalf("putting %q: %v", key, err)
	}
}

func wantGet(t testing.TB, tx *engine.Tx, key, want string) {
	t.Helper()
	v, found, err := tx.Get([]byte(key))
	if err != nil || found != (want != "absent") || found && string(v) != want {
		t.Fatalf("%q is %q %v %v, want %q", key, v, found, err, want)
	}
}

func wantTx(t testing.TB, tx *engine.Tx, ev engine.Event, want engine.Verdict) {
	t.Helper()
	r, err := tx.TryClaim(ev)
	if err != nil || r.Verdict != want {
		t.Fatalf("%q: %v %v, want %v", ev.ID, r.Verdict, err, want)
	}
}

func update(t testing.TB, e *engine.Engine, fn func(tx *engine.Tx)) {
	t.Helper()
	if err := e.Update(ctx, func(tx *engine.Tx) error { fn(tx); return nil }); err != nil {
		t.Fatalf("transaction: %v", err)
	}
}

// wantKept fails unless the application's keys are as given; "absent" means no key.
func wantKept(t testing.TB, e *engine.Engine, want map[string]string) {
	t.Helper()
	update(t, e, func(tx *engine.Tx) {
		for k, v := range want {
			wantGet(t, tx, k, v)
		}
	})
}

func TestSecondOfTwoReadModifyWritesFailsWhole(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "balance", "1") })
	pos := engine.OffsetKey{Group: "g", Topic: "orders"}
	err := e.Update(ctx, func(outer *engine.Tx) error {
		wantGet(t, outer, "balance", "1")
		update(t, e, func(inner *engine.Tx) {
			wantGet(t, inner, "balance", "1")
			mustPut(t, inner, "balance", "2")
		})
		wantTx(t, outer, event("a"), engine.Claimed)
		mustPut(t, outer, "balance", "10")
		mustPut(t, outer, "other", "x")
		return outer.SetOffset(pos, engine.Offset{Next: 5})
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Fatalf("the update that would be lost: %v", err)
	}
	again := open(t, m.CrashClone(m.Unsynced()), engine.Options{})
	for _, e := range []*engine.Engine{e, again} {
		wantKept(t, e, map[string]string{"balance": "2", "other": "absent"})
		if _, found, err := e.Admin().Offset(ctx, pos); found || err != nil {
			t.Error("the offset of the failed transaction is stored", err)
		}
		wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
	}
}

func TestWriteSkewIsConflict(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(ctx, func(outer *engine.Tx) error {
		wantGet(t, outer, "on call 1", "absent")
		wantGet(t, outer, "on call 2", "absent") // absent reads count
		update(t, e, func(inner *engine.Tx) {
			wantGet(t, inner, "on call 1", "absent")
			wantGet(t, inner, "on call 2", "absent")
			mustPut(t, inner, "on call 1", "off")
		})
		return outer.Put([]byte("on call 2"), []byte("off"))
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Fatal(err)
	}
	wantKept(t, e, map[string]string{"on call 1": "off", "on call 2": "absent"})
}

func TestOffsetsAreReadAndValidatedLikeKeys(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	pos := engine.OffsetKey{Group: "g", Topic: "orders", Partition: 2}
	set := func(tx *engine.Tx, next int64) error {
		return tx.SetOffset(pos, engine.Offset{Next: next, LeaderEpoch: 4, TopicID: [16]byte{9}})
	}
	err := e.Update(ctx, func(outer *engine.Tx) error {
		if _, found, err := outer.Offset(pos); found || err != nil {
			t.Error(found, err)
		}
		update(t, e, func(inner *engine.Tx) {
			if err := set(inner, 3); err != nil {
				t.Error(err)
			}
			if o, found, err := inner.Offset(pos); o.Next != 3 || !found || err != nil {
				t.Error("own offset reads", o, found, err)
			}
		})
		return set(outer, 9)
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	want := engine.Offset{Next: 3, LeaderEpoch: 4, TopicID: [16]byte{9}}
	if o, found, err := e.Admin().Offset(ctx, pos); o != want || !found || err != nil {
		t.Error(o, found, err)
	}
}

func TestReadOfAKeyWrittenSinceTheBeginEndsTheTransaction(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(ctx, func(outer *engine.Tx) error {
		update(t, e, func(inner *engine.Tx) { mustPut(t, inner, "k", "1") })
		if _, _, err := outer.Get([]byte("k")); !errors.Is(err, engine.ErrConflict) {
			t.Errorf("the read: %v", err)
		}
		if err := outer.Put([]byte("k"), nil); !errors.Is(err, engine.ErrConflict) {
			t.Errorf("a write after it: %v", err)
		}
		return nil // the closure ignores errors
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	wantKept(t, e, map[string]string{"k": "1"})
}

func TestBlindWritesDoNotConflictAndTheLaterCounts(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(outer *engine.Tx) {
		mustPut(t, outer, "k", "outer")
		update(t, e, func(inner *engine.Tx) { mustPut(t, inner, "k", "inner") })
		wantGet(t, outer, "k", "outer")
	})
	wantKept(t, e, map[string]string{"k": "outer"})
}

func TestReadOnlyTransactionSeesOneSnapshot(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "a", "1"); mustPut(t, tx, "b", "1") })
	change := func() {
		update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "a", "2"); mustPut(t, tx, "b", "2") })
	}
	update(t, e, func(tx *engine.Tx) { // reads as of its begin; later commits do not conflict
		wantGet(t, tx, "a", "1")
		wantGet(t, tx, "b", "1")
		change()
	})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantGet(t, tx, "a", "2")
		change()
		_, _, err := tx.Get([]byte("b"))
		return err
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
}

// A transaction that reads the old balance, and gets a claim that was committed together with the
// new balance, has seen no consistent state, whether it writes or not.
func TestReadsAndDuplicatesOfATransactionBelongToOneSnapshot(t *testing.T) {
	for name, write := range map[string]bool{"read only": false, "writing": true} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			err := e.Update(ctx, func(outer *engine.Tx) error {
				wantGet(t, outer, "balance", "absent")
				update(t, e, func(inner *engine.Tx) {
					wantTx(t, inner, event("deposit"), engine.Claimed)
					mustPut(t, inner, "balance", "10")
				})
				wantTx(t, outer, event("deposit"), engine.Duplicate)
				if write {
					mustPut(t, outer, "report", "deposited, and the balance is 0")
				}
				return nil
			})
			if !errors.Is(err, engine.ErrConflict) {
				t.Errorf("got the deposit without its balance, and: %v", err)
			}
		})
	}
}

// The same is true for every other verdict that depends on what another transaction has committed,
// also if what was claimed is rolled back.
func TestReadsAndVerdictsOfATransactionBelongToOneSnapshot(t *testing.T) {
	leased, printed := leasedEvent("leased"), event("printed")
	printed.Fingerprint = "one"
	another := printed
	another.Fingerprint = "another"
	for name, c := range map[string]struct {
		committed, asked engine.Event
		withdrawn        bool
		want             engine.Verdict
	}{
		"pending":  {leased, leased, false, engine.Pending},
		"mismatch": {printed, another, false, engine.Mismatch},
		"claimed":  {event("a"), event("a"), true, engine.Claimed},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			var rec engine.ClaimRecord
			if c.withdrawn {
				rec = claim(t, e, c.committed).Record
			}
			err := e.Update(ctx, func(outer *engine.Tx) error {
				wantGet(t, outer, "state", "absent")
				update(t, e, func(inner *engine.Tx) {
					if c.withdrawn {
						wantErr(t, driver.Unclaim(inner, c.committed, rec), nil)
					} else {
						wantTx(t, inner, c.committed, engine.Claimed)
					}
					mustPut(t, inner, "state", "changed")
				})
				sp, err := outer.Savepoint()
				wantErr(t, err, nil)
				wantTx(t, outer, c.asked, c.want)
				return outer.RollbackTo(sp)
			})
			wantErr(t, err, engine.ErrConflict)
		})
	}
}

func TestReadOwnWrites(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "old", "1") })
	update(t, e, func(tx *engine.Tx) {
		wantGet(t, tx, "k", "absent")
		mustPut(t, tx, "k", "1")
		mustPut(t, tx, "k", "2")
		wantGet(t, tx, "k", "2")
		if err := tx.Delete([]byte("k")); err != nil {
			t.Error(err)
		}
		wantGet(t, tx, "k", "absent")
		mustPut(t, tx, "k", "")
		wantGet(t, tx, "k", "") // empty is not absent
		if err := tx.Delete([]byte("old")); err != nil {
			t.Error(err)
		}
		wantGet(t, tx, "old", "absent")
		value := []byte("mine")
		if err := tx.Put([]byte("copied"), value); err != nil {
			t.Error(err)
		}
		clear(value)
		wantGet(t, tx, "copied", "mine")
		got, _, _ := tx.Get([]byte("copied"))
		clear(got)
		wantGet(t, tx, "copied", "mine")
	})
	wantKept(t, e, map[string]string{"k": "", "old": "absent", "copied": "mine"})
}

func TestSameKeyTwiceInOneTxIsDuplicate(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		first, err := tx.TryClaim(event("a"))
		wantVerdict(t, first, engine.Claimed)
		again := event("a")
		again.Origin.Offset++
		second, err2 := tx.TryClaim(again)
		wantVerdict(t, second, engine.Duplicate)
		if err != nil || err2 != nil || first.Record != second.Record {
			t.Error(first, second, err, err2)
		}
	})
	r := claim(t, e, event("a"))
	wantVerdict(t, r, engine.Duplicate)
	if r.Record.Origin != event("a").Origin {
		t.Error("kept", r.Record)
	}
}

func TestSavepointUndoesClaimsAndWritesAfterIt(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	save := func(tx *engine.Tx) engine.Savepoint {
		s, err := tx.Savepoint()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	back := func(tx *engine.Tx, s engine.Savepoint) {
		if err := tx.RollbackTo(s); err != nil {
			t.Fatal(err)
		}
	}
	var foreign engine.Savepoint
	update(t, e, func(tx *engine.Tx) { foreign = save(tx) })
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, event("stays"), engine.Claimed)
		mustPut(t, tx, "k", "0")
		outer := save(tx)
		mustPut(t, tx, "k", "1")
		mustPut(t, tx, "k", "2")
		wantTx(t, tx, event("a"), engine.Claimed)
		inner := save(tx)
		mustPut(t, tx, "k", "3")
		mustPut(t, tx, "new", "1")
		wantTx(t, tx, event("b"), engine.Claimed)
		wantTx(t, tx, event("a"), engine.Duplicate)

		back(tx, inner)
		wantGet(t, tx, "k", "2")
		wantGet(t, tx, "new", "absent")
		wantTx(t, tx, event("a"), engine.Duplicate) // from before the inner savepoint
		wantVerdict(t, claim(t, e, event("b")), engine.Claimed)
		wantTx(t, tx, event("b"), engine.Duplicate) // another caller has taken it
		wantVerdict(t, claim(t, e, event("a")), engine.InFlight)

		back(tx, inner) // to the same point once more
		mustPut(t, tx, "k", "4")
		wantTx(t, tx, event("c"), engine.Claimed)
		back(tx, outer)
		wantGet(t, tx, "k", "0")
		var wrong *engine.ArgumentError
		for _, s := range []engine.Savepoint{inner, foreign, {}} {
			if err := tx.RollbackTo(s); !errors.As(err, &wrong) {
				t.Errorf("rolling back to a savepoint that does not exist: %v", err)
			}
		}
		wantTx(t, tx, event("stays"), engine.Duplicate)
		wantTx(t, tx, event("a"), engine.Claimed) // and again
		back(tx, outer)
		wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
		wantTx(t, tx, event("c"), engine.Claimed)
	})
	wantKept(t, e, map[string]string{"k": "0", "new": "absent"})
	for _, id := range []string{"stays", "a", "b", "c"} {
		wantVerdict(t, claim(t, e, event(id)), engine.Duplicate)
	}
}

func TestPanicAndGoexitRollBack(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic(errBoom) }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			e, m := openMem(t, engine.Options{})
			before := m.Calls(storetest.OpApply)
			var caught any
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { caught = recover() }()
				_ = e.Update(ctx, func(tx *engine.Tx) error {
					wantTx(t, tx, event("a"), engine.Claimed)
					mustPut(t, tx, "k", "1")
					leave()
					return nil
				})
			})
			wg.Wait()
			if name == "panic" && caught != errBoom { //nolint:errorlint // the very value that was thrown
				t.Errorf("the panic became %v", caught)
			}
			if m.Calls(storetest.OpApply) != before {
				t.Error("something was written")
			}
			wantKept(t, e, map[string]string{"k": "absent"})
			wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
			if s, err := e.Stats(); err != nil || s.OpenTransactions != 0 {
				t.Error(s.OpenTransactions, err)
			}
		})
	}
}

// storeCalls returns the number of all calls of a store.
func storeCalls(m *storetest.Mem) (n int) {
	for _, op := range allOps {
		n += m.Calls(op)
	}
	return n
}

// settle waits until no background call of Open to the store is in progress.
func settle(t testing.TB, e *engine.Engine, m *storetest.Mem) {
	t.Helper()
	eventually(t, "the first pass of retention", func() bool { return m.Calls(storetest.OpBuckets) > 0 })
	if _, err := e.Retention().DropExpired(ctx); err != nil { // it waits for the pass
		t.Fatal(err)
	}
}

func TestTransactionThatIsNotLiveTouchesNothing(t *testing.T) {
	e, m := openMem(t, engine.Options{DefaultScope: "billing"})
	claim(t, e, event("there"))
	pos := engine.OffsetKey{Group: "g", Topic: "orders"}
	uses := map[string]func(tx *engine.Tx) error{
		"TryClaim":       func(tx *engine.Tx) error { _, err := tx.TryClaim(event("a")); return err },
		"TryClaim there": func(tx *engine.Tx) error { _, err := tx.TryClaim(event("there")); return err },
		"TryReopen":      func(tx *engine.Tx) error { _, err := tx.TryReopen(event("a"), 0); return err },
		"DeadLetter":     func(tx *engine.Tx) error { _, err := tx.DeadLetter(event("a")); return err },
		"Get":            func(tx *engine.Tx) error { _, _, err := tx.Get([]byte("k")); return err },
		"Put":            func(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) },
		"Delete":         func(tx *engine.Tx) error { return tx.Delete([]byte("k")) },
		"Offset":         func(tx *engine.Tx) error { _, _, err := tx.Offset(pos); return err },
		"SetOffset":      func(tx *engine.Tx) error { return tx.SetOffset(pos, engine.Offset{Next: 1}) },
		"DeleteOffset":   func(tx *engine.Tx) error { return tx.DeleteOffset(pos) },
		"SetHold":        func(tx *engine.Tx) error { return tx.SetHold("h", noon) },
		"ReleaseHold":    func(tx *engine.Tx) error { return tx.ReleaseHold("h") },
		"Savepoint":      func(tx *engine.Tx) error { _, err := tx.Savepoint(); return err },
		"RollbackTo":     func(tx *engine.Tx) error { return tx.RollbackTo(engine.Savepoint{}) },
	}
	var finished, failed, lost *engine.Tx
	_ = e.Update(ctx, func(tx *engine.Tx) error { finished = tx; return tx.Put([]byte("k"), []byte("1")) })
	_ = e.Update(ctx, func(tx *engine.Tx) error { failed = tx; return errBoom })
	_ = e.Update(ctx, func(tx *engine.Tx) error {
		lost = tx
		update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", "2") })
		_, _, err := tx.Get([]byte("k"))
		return err
	})
	settle(t, e, m)
	for kind, tx := range map[string]*engine.Tx{"nil": nil, "committed": finished, "failed": failed, "lost": lost} {
		for name, use := range uses {
			before := storeCalls(m)
			if err := use(tx); !errors.Is(err, engine.ErrNoTransaction) {
				t.Errorf("%s of a %s transaction: %v", name, kind, err)
			}
			if n := storeCalls(m) - before; n != 0 {
				t.Errorf("%s of a %s transaction made %d calls of the store", name, kind, n)
			}
		}
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
}

func TestGoroutineThatOutlastsTheClosureIsRejected(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	for range 50 {
		stop := make(chan struct{})
		last := make(chan error, 4)
		_ = e.Update(ctx, func(tx *engine.Tx) error {
			for g := range cap(last) {
				go func() {
					var err error
					for i := 0; err == nil; i++ {
						if g%2 == 0 {
							_, err = tx.TryClaim(event(fmt.Sprint("leak", g, i)))
						} else if _, _, err = tx.Get([]byte{1}); err == nil {
							err = tx.Put([]byte{byte(g)}, []byte{byte(i)})
						}
						select {
						case <-stop:
							if err == nil {
								_, err = tx.Savepoint()
							}
							if err == nil {
								err = errors.New("still live after Update has returned")
							}
						default:
						}
					}
					last <- err
				}()
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		close(stop)
		for range cap(last) {
			if err := <-last; !errors.Is(err, engine.ErrNoTransaction) {
				t.Fatal(err)
			}
		}
	}
	if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if s, err := e.Stats(); err != nil || s.OpenTransactions != 0 {
		t.Fatal(s.OpenTransactions, err)
	}
}

func TestSeveralGoroutinesMayUseOneTransaction(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var claimed sync.Map
	update(t, e, func(tx *engine.Tx) {
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 50 {
					r, err := tx.TryClaim(event(fmt.Sprint(i)))
					if err != nil {
						t.Error(err)
					}
					if r.Verdict == engine.Claimed {
						if _, twice := claimed.LoadOrStore(i, g); twice {
							t.Errorf("%d was claimed twice", i)
						}
					}
					if err := tx.Put(fmt.Appendf(nil, "%d-%d", g, i), nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
	for i := range 50 {
		if _, ok := claimed.Load(i); !ok {
			t.Errorf("%d was claimed by no caller", i)
		}
		wantVerdict(t, claim(t, e, event(fmt.Sprint(i))), engine.Duplicate)
	}
}

func TestTwoTransactionsThatClaimEachOthersKeysEnd(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	for round := range 100 {
		a, b := event(fmt.Sprint("a", round)), event(fmt.Sprint("b", round))
		both := make(chan struct{}, 2)
		claimedBy := map[string]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		run := func(first, second engine.Event) {
			var mine []string
			err := e.Update(ctx, func(tx *engine.Tx) error {
				for i, ev := range []engine.Event{first, second} {
					r, err := tx.TryClaim(ev)
					switch {
					case err != nil:
						return err
					case r.Verdict == engine.Claimed:
						mine = append(mine, string(ev.ID))
					case r.Verdict == engine.InFlight:
						return errBoom // try again later
					}
					if i == 0 {
						both <- struct{}{}
						for len(both) < 2 && round%2 == 0 {
							runtime.Gosched()
						}
					}
				}
				return nil
			})
			if err != nil && !errors.Is(err, errBoom) && !errors.Is(err, engine.ErrConflict) {
				t.Error(err)
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				for _, id := range mine {
					claimedBy[id]++
				}
			}
		}
		wg.Go(func() { run(a, b) })
		wg.Go(func() { run(b, a) })
		wg.Wait()
		for _, ev := range []engine.Event{a, b} {
			r := claim(t, e, ev)
			if n := claimedBy[string(ev.ID)]; n > 1 || (r.Verdict == engine.Duplicate) != (n == 1) {
				t.Fatalf("round %d: %d transactions committed a claim on %q, then %v", round, n, ev.ID, r.Verdict)
			}
		}
	}
}

func TestOwnCommitClaimInsideAClosureCommitsSeparately(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, event("tx"), engine.Claimed)
		wantVerdict(t, claim(t, e, event("own")), engine.Claimed)
		wantVerdict(t, claim(t, e, event("tx")), engine.InFlight) // its own transaction holds it
		wantTx(t, tx, event("own"), engine.Duplicate)
		if _, err := e.Admin().Forget(ctx, "billing", []byte("tx"), noon); !errors.Is(err, engine.ErrConflict) {
			t.Error("forgetting a claim that a transaction holds:", err)
		}
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Error(err)
	}
	wantVerdict(t, claim(t, e, event("own")), engine.Duplicate)
	wantVerdict(t, claim(t, e, event("tx")), engine.Claimed)
}

func TestFailedHandlerLeavesTheEventClaimable(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	for attempt := range 3 {
		err := e.Update(ctx, func(tx *engine.Tx) error {
			wantTx(t, tx, event("a"), engine.Claimed)
			if attempt < 2 {
				return errBoom
			}
			return nil
		})
		if (err == nil) != (attempt == 2) {
			t.Fatal(err)
		}
		if attempt == 0 { // and so does a crash in the middle
			clone := open(t, m.CrashClone(m.Unsynced()), engine.Options{})
			wantVerdict(t, claim(t, clone, event("a")), engine.Claimed)
		}
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
}

func TestUpdateRunsAgainAsOftenAsRetriesSays(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	runs := 0
	losing := func(n int) func(tx *engine.Tx) error {
		runs = 0
		return func(tx *engine.Tx) error {
			runs++
			if _, _, err := tx.Get([]byte("k")); err != nil {
				return err
			}
			if runs <= n {
				update(t, e, func(tx *engine.Tx) { mustPut(t, tx, "k", fmt.Sprint(runs)) })
			}
			return tx.Put([]byte("done"), []byte(fmt.Sprint(runs)))
		}
	}
	if err := e.Update(ctx, losing(2)); !errors.Is(err, engine.ErrConflict) || runs != 1 {
		t.Errorf("without Retries: %d runs, %v", runs, err)
	}
	if err := e.Update(ctx, losing(2), engine.Retries(1)); !errors.Is(err, engine.ErrConflict) || runs != 2 {
		t.Errorf("with too few: %d runs, %v", runs, err)
	}
	if err := e.Update(ctx, losing(2), engine.Retries(2)); err != nil || runs != 3 {
		t.Errorf("with enough: %d runs, %v", runs, err)
	}
	wantKept(t, e, map[string]string{"done": "3"})
	if err := e.Update(ctx, func(*engine.Tx) error { runs++; return errBoom }, engine.Retries(5)); !errors.Is(err, errBoom) || runs != 4 {
		t.Errorf("an error of the closure's own: %d runs, %v", runs, err)
	}
	short, cancel := context.WithCancel(ctx)
	err := e.Update(short, func(*engine.Tx) error { cancel(); return engine.ErrConflict }, engine.Retries(5))
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestContextThatEndsInTheClosureStopsTheCommit(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	during, cancel := context.WithCancel(ctx)
	err := e.Update(during, func(tx *engine.Tx) error {
		wantTx(t, tx, event("a"), engine.Claimed)
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
}

func TestClaimInAWeekDroppedMeanwhileFailsTheWholeTransaction(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	week, err := weekbucket.Of(noon)
	if err != nil {
		t.Fatal(err)
	}
	err = e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, event("a"), engine.Claimed)
		next := event("next week")
		next.Time = noon.AddDate(0, 0, 1)
		wantTx(t, tx, next, engine.Claimed)
		mustPut(t, tx, "k", "1")
		for e.Retention().OldestWeek() <= week {
			if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); err != nil {
				return err
			}
		}
		wantTx(t, tx, event("b"), engine.TooOld)
		return nil
	})
	if !errors.Is(err, engine.ErrWeekDropped) {
		t.Error(err)
	}
	wantKept(t, e, map[string]string{"k": "absent"})
	wantVerdict(t, claim(t, e, event("a")), engine.TooOld)
}

func TestTransactionLimits(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var wrong *engine.ArgumentError
	update(t, e, func(tx *engine.Tx) {
		for _, key := range [][]byte{nil, {}, make([]byte, limits.KeyBytes+1)} {
			_, _, getErr := tx.Get(key)
			for _, err := range []error{getErr, tx.Put(key, nil), tx.Delete(key)} {
				if !errors.As(err, &wrong) {
					t.Errorf("key of %d bytes: %v", len(key), err)
				}
			}
		}
		if err := tx.Put([]byte("k"), make([]byte, limits.ValueBytes+1)); !errors.As(err, &wrong) {
			t.Error(err)
		}
		if err := tx.Put(make([]byte, limits.KeyBytes), nil); err != nil {
			t.Error(err)
		}
		for _, p := range []engine.OffsetKey{
			{Topic: "t"}, {Group: "g"}, {Group: "g", Topic: "t", Partition: -1},
			{Group: strings.Repeat("g", limits.ScopeBytes+1), Topic: "t"}, {Group: "g", Topic: strings.Repeat("t", limits.TopicBytes+1)},
		} {
			_, _, getErr := tx.Offset(p)
			for _, err := range []error{getErr, tx.SetOffset(p, engine.Offset{})} {
				if !errors.As(err, &wrong) {
					t.Errorf("position %+v: %v", p, err)
				}
			}
		}
		if err := tx.SetOffset(engine.OffsetKey{Group: "g", Topic: "t"}, engine.Offset{Next: -1}); !errors.As(err, &wrong) {
			t.Error(err)
		}
		if err := errors.Join(tx.SetHold(" ", noon), tx.SetHold("h", time.Time{})); !errors.As(err, &wrong) {
			t.Error(err)
		}
	})
	_ = e.Update(ctx, func(tx *engine.Tx) error {
		var err error
		for i := 0; err == nil && i < limits.TxBytes/100; i++ {
			err = tx.Put(binary.BigEndian.AppendUint32(nil, uint32(i)), nil)
		}
		if !errors.Is(err, engine.ErrLimit) {
			t.Errorf("many small writes: %v", err)
		}
		return errors.New("rolled back")
	})
	_ = e.Update(ctx, func(tx *engine.Tx) error {
		big := make([]byte, limits.ValueBytes)
		s, err := tx.Savepoint()
		for i := 0; err == nil; i++ {
			if err = tx.Put([]byte{byte(i)}, big); i > limits.TxBytes/limits.ValueBytes {
				break
			}
		}
		if !errors.Is(err, engine.ErrLimit) {
			t.Errorf("bytes: %v", err)
		}
		if err := tx.RollbackTo(s); err != nil {
			t.Error(err)
		}
		if err := tx.Put([]byte("k"), big); err != nil {
			t.Errorf("after a rollback: %v", err)
		}
		return errBoom
	})
}

func TestClaimsOfOneTransactionAreCapped(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 65537 claims")
	}
	e, _ := openMem(t, engine.Options{})
	update(t, e, func(tx *engine.Tx) {
		for i := range limits.TxClaims {
			wantTx(t, tx, event(fmt.Sprint(i)), engine.Claimed)
		}
		if _, err := tx.TryClaim(event("one more")); !errors.Is(err, engine.ErrLimit) {
			t.Error(err)
		}
		wantTx(t, tx, event("7"), engine.Duplicate)
	})
	wantVerdict(t, claim(t, e, event("65535")), engine.Duplicate)
	wantVerdict(t, claim(t, e, event("one more")), engine.Claimed)
}

func TestInFlightIsReturnedWithoutWaitingForTheTransactionOrASync(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	release, held, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- e.Update(ctx, func(tx *engine.Tx) error {
			wantTx(t, tx, event("a"), engine.Claimed)
			close(held)
			<-release
			return nil
		})
	}()
	receive(t, held)
	wantVerdict(t, claim(t, e, event("a")), engine.InFlight) // while the closure runs
	m.HoldSyncs()
	close(release)
	awaitHeld(t, m) // now it commits, and nothing becomes durable
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, event("a"), engine.InFlight) // a Duplicate would have to wait
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Error(err)
	}
	m.ReleaseSyncs()
	if err := receive(t, done); err != nil {
		t.Error(err)
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
}

// A look at a long claimed event does not make it look unclaimed to others.
func TestDurableDuplicateIsNotInFlight(t *testing.T) {
	e, m := openMem(t, engine.Options{RecentClaims: -1})
	claim(t, e, event("a"))
	looking, look := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(look) })
	t.Cleanup(goOn)
	first := m.Calls(storetest.OpClaim) + 1
	m.Before(storetest.OpClaim, func(call int) error {
		if call == first {
			close(looking)
			<-look
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() { update(t, e, func(tx *engine.Tx) { wantTx(t, tx, event("a"), engine.Duplicate) }) })
	receive(t, looking)
	update(t, e, func(tx *engine.Tx) { wantTx(t, tx, event("a"), engine.Duplicate) })
	goOn()
	wg.Wait()
}

func TestCloseDuringAClosureFailsTheTransaction(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		wantTx(t, tx, event("a"), engine.Claimed)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := tx.TryClaim(event("b")); !errors.Is(err, engine.ErrClosed) {
			t.Error(err)
		}
		return nil
	})
	if !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
	again, err := m.Disk().Open("mem", storage.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, open(t, again, engine.Options{}), event("a")), engine.Claimed)
}

func TestSavepointThatWasRolledBackIsRejected(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	err := e.Update(ctx, func(tx *engine.Tx) error {
		p0, _ := tx.Savepoint()
		if err := tx.Put([]byte("a"), []byte("1")); err != nil {
			return err
		}
		p1, _ := tx.Savepoint()
		if err := tx.RollbackTo(p0); err != nil {
			return err
		}
		if err := errors.Join(tx.Put([]byte("b"), []byte("2")), tx.Put([]byte("c"), []byte("3"))); err != nil {
			return err
		}
		var wrong *engine.ArgumentError
		if err := tx.RollbackTo(p1); !errors.As(err, &wrong) {
			t.Errorf("going back to a rolled back savepoint: %v", err)
		}
		if _, found, err := tx.Get([]byte("c")); err != nil || !found {
			t.Error("a rejected rollback undid a write", err)
		}
		return tx.RollbackTo(p0) // it remains valid
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A closure that does not end delays nothing for longer than its context allows.
func TestTransactionEndsWithItsContext(t *testing.T) {
	e, _, _ := openAt(t, engine.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ev := event("a")
	err := e.Update(ctx, func(tx *engine.Tx) error {
		if r, err := tx.TryClaim(ev); err != nil || r.Verdict != engine.Claimed {
			t.Fatal(r.Verdict, err)
		}
		if r, err := e.TryClaim(t.Context(), ev); err != nil || r.Verdict != engine.InFlight {
			t.Errorf("while it is open: %v, %v", r.Verdict, err)
		}
		cancel()
		for over := time.Now().Add(time.Minute); ; runtime.Gosched() {
			r, err := e.TryClaim(t.Context(), ev)
			if err != nil || r.Verdict != engine.InFlight || time.Now().After(over) {
				if r.Verdict != engine.Claimed {
					t.Errorf("after its context has ended: %v, %v", r.Verdict, err)
				}
				break
			}
		}
		if err := tx.Put([]byte("k"), []byte("v")); !errors.Is(err, engine.ErrNoTransaction) {
			t.Errorf("it writes on: %v", err)
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Update: %v", err)
	}
}

// A transaction whose context ends while its closure runs tells so, and not only that it is no longer
// live. An error of the closure's own stays.
func TestUpdateNamesTheEndOfItsContext(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	own := errors.New("own")
	for _, c := range []struct {
		name         string
		returned     func(tx *engine.Tx) error
		want, absent error
	}{
		{"nil", func(*engine.Tx) error { return nil }, context.Canceled, own},
		{"not live", func(tx *engine.Tx) error { return fmt.Errorf("put: %w", tx.Put([]byte("k"), nil)) }, context.Canceled, own},
		{"own", func(*engine.Tx) error { return own }, own, context.Canceled},
	} {
		during, cancel := context.WithCancel(t.Context())
		err := e.Update(during, func(tx *engine.Tx) error {
			cancel()
			for tx.Put([]byte("k"), nil) == nil { // it ends in a goroutine of its own
				runtime.Gosched()
			}
			return c.returned(tx)
		})
		if !errors.Is(err, c.want) || errors.Is(err, c.absent) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
