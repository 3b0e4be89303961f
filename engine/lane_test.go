package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// A laneTest is an engine in a bubble with members that have met, so that they take turns of one
// second.
type laneTest struct {
	*testing.T
	e       *engine.Engine
	m       *storetest.Mem
	members []*driver.LaneMember
}

func inLane(t *testing.T, members int, fn func(t *laneTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, m := openMem(t, engine.Options{})
		l := &laneTest{T: t, e: e, m: m}
		for range members {
			member := driver.JoinLane(e, time.Second)
			l.lose(member)
			l.members = append(l.members, member)
		}
		fn(l)
	})
}

// lose makes a transaction of the member fail with a conflict.
func (t *laneTest) lose(member *driver.LaneMember) {
	t.Helper()
	err := driver.Update(ctx, t.e, func(tx *engine.Tx) error {
		_, _, err := tx.Get([]byte("met"))
		update(t, t.e, func(tx *engine.Tx) { mustPut(t, tx, "met", "by another") })
		return errors.Join(err, tx.Put([]byte("lost"), nil))
	}, driver.UpdateOptions{Lane: member})
	if !errors.Is(err, engine.ErrConflict) {
		t.Fatalf("the transaction ended with %v, want a conflict", err)
	}
	// from now on its turns are not longer than stated
	if err := driver.Update(ctx, t.e, commits, driver.UpdateOptions{Lane: member}); err != nil {
		t.Fatal(err)
	}
}

// A running transaction blocks in its closure until it may continue.
type running struct {
	began chan struct{}
	leave chan func(tx *engine.Tx) error // how the closure ends
	done  chan error                     // the result of Update; none after a panic
	ended chan struct{}                  // closed after Update, also if it panicked
}

// start runs a transaction of the member that writes a key, and waits until it is in its closure or
// in the queue.
func (t *laneTest) start(c context.Context, member *driver.LaneMember, options ...driver.UpdateOptions) *running {
	opt := driver.UpdateOptions{Lane: member}
	for _, o := range options {
		opt = o
		opt.Lane = member
	}
	r := &running{make(chan struct{}), make(chan func(tx *engine.Tx) error), make(chan error, 1), make(chan struct{})}
	go func() {
		defer close(r.ended)
		defer func() { _ = recover() }()
		r.done <- driver.Update(c, t.e, func(tx *engine.Tx) error {
			close(r.began)
			return (<-r.leave)(tx)
		}, opt)
	}()
	synctest.Wait()
	return r
}

func (r *running) hasBegun() bool {
	synctest.Wait()
	select {
	case <-r.began:
		return true
	default:
		return false
	}
}

func commits(tx *engine.Tx) error { return tx.Put([]byte("k"), nil) }

func (t *laneTest) finish(runs ...*running) {
	t.Helper()
	for _, r := range runs {
		r.leave <- commits
		if err := <-r.done; err != nil {
			t.Errorf("Update: %v", err)
		}
	}
}

func TestTurnEndsInEveryWay(t *testing.T) {
	for name, leave := range map[string]func(t *laneTest, tx *engine.Tx) error{
		"commit":    func(_ *laneTest, tx *engine.Tx) error { return commits(tx) },
		"rollback":  func(*laneTest, *engine.Tx) error { return errBoom },
		"panic":     func(*laneTest, *engine.Tx) error { panic(errBoom) },
		"Goexit":    func(*laneTest, *engine.Tx) error { runtime.Goexit(); return nil },
		"read only": func(*laneTest, *engine.Tx) error { return nil },
		"lost": func(t *laneTest, tx *engine.Tx) error {
			_, _, err := tx.Get([]byte("r"))
			update(t, t.e, func(tx *engine.Tx) { mustPut(t, tx, "r", "") })
			return errors.Join(err, commits(tx))
		},
		"lost in a read": func(t *laneTest, tx *engine.Tx) error {
			update(t, t.e, func(tx *engine.Tx) { mustPut(t, tx, "r", "") })
			_, _, err := tx.Get([]byte("r"))
			return err
		},
		"week dropped": func(t *laneTest, tx *engine.Tx) error {
			ev := event("old")
			ev.Time = noon.AddDate(0, 0, -7*engine.DefaultRetentionWeeks)
			wantTx(t, tx, ev, engine.Claimed)
			_, err := t.e.Retention().DropWeek(ctx, t.e.Retention().OldestWeek())
			return err
		},
		"time over": func(t *laneTest, _ *engine.Tx) error { time.Sleep(2 * time.Second); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			inLane(t, 2, func(t *laneTest) {
				a := t.start(ctx, t.members[0])
				b := t.start(ctx, t.members[1])
				if !a.hasBegun() || b.hasBegun() {
					t.Fatal("the second member does not wait for the first one")
				}
				at := time.Now()
				overtime := false
				a.leave <- func(tx *engine.Tx) error {
					defer func() { overtime = b.hasBegunNow() }()
					return leave(t, tx)
				}
				<-b.began
				if took := time.Since(at); took > 0 && name != "time over" {
					t.Errorf("the second one began after %v", took)
				}
				<-a.ended
				if overtime != (name == "time over") {
					t.Errorf("the second one began while the first one was in its closure: %t", overtime)
				}
				t.finish(b)
			})
		})
	}
}

func (r *running) hasBegunNow() bool {
	select {
	case <-r.began:
		return true
	default:
		return false
	}
}

func TestTurnEndsWithTheContextThoughTheClosureContinues(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		short, cancel := context.WithCancel(ctx)
		a, b := t.start(short, t.members[0]), t.start(ctx, t.members[1])
		cancel()
		if !b.hasBegun() {
			t.Error("the second one still waits")
		}
		t.finish(b)
		a.leave <- func(*engine.Tx) error { return nil }
		if err := <-a.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestTurnEndsWhenTheBatchIsAppliedAndNotDurable(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		a, b := t.start(ctx, t.members[0]), t.start(ctx, t.members[1])
		t.m.HoldSyncs()
		a.leave <- commits
		if !b.hasBegun() {
			t.Error("the second one waits for the sync")
		}
		if len(a.done) > 0 {
			t.Error("Update returned before its batch was durable")
		}
		t.m.ReleaseSyncs()
		t.finish(b)
		if err := <-a.done; err != nil {
			t.Error(err)
		}
	})
}

func TestTurnLastsUntilTheBatchIsApplied(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		apply := make(chan struct{})
		t.m.Before(storetest.OpApply, func(int) error { <-apply; return nil })
		a, b := t.start(ctx, t.members[0]), t.start(ctx, t.members[1])
		a.leave <- commits
		if b.hasBegun() {
			t.Error("the second one began and does not see the first one's write")
		}
		close(apply)
		<-b.began
		t.finish(b)
	})
}

func TestWaitForATurnEndsWithContextCloseAndFailure(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(t *laneTest, cancel func())
		want error
	}{
		"context": {func(_ *laneTest, cancel func()) { cancel() }, context.Canceled},
		"close":   {func(t *laneTest, _ func()) { t.e.Close() }, engine.ErrClosed},
		"failure": {func(t *laneTest, _ func()) {
			t.m.FailAt(storetest.OpApply, 1, errBoom)
			_ = t.e.SetHold(ctx, "h", noon)
		}, engine.ErrStopped},
	} {
		t.Run(name, func(t *testing.T) {
			inLane(t, 3, func(t *laneTest) {
				short, cancel := context.WithCancel(ctx)
				defer cancel()
				a, b, c2 := t.start(ctx, t.members[0]), t.start(short, t.members[1]), t.start(ctx, t.members[2])
				c.end(t, cancel)
				if err := <-b.done; !errors.Is(err, c.want) {
					t.Errorf("the one that waits: %v", err)
				}
				a.leave <- commits
				<-a.done
				if name == "context" { // it has left the queue to the next one
					t.finish(c2)
				}
			})
		})
	}
}

func TestTurnsAreInTheOrderOfArrival(t *testing.T) {
	inLane(t, 6, func(t *laneTest) {
		var runs []*running
		for _, i := range []int{3, 0, 5, 1, 4, 2} {
			runs = append(runs, t.start(ctx, t.members[i]))
		}
		for i, r := range runs {
			for j, other := range runs {
				if other.hasBegun() != (j <= i) {
					t.Fatalf("during turn %d: number %d has begun: %t", i, j, other.hasBegun())
				}
			}
			t.finish(r)
		}
	})
}

func TestTransactionsOutsideTheLaneNeverWait(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		a, b := t.start(ctx, t.members[0]), t.start(ctx, t.members[1])
		stranger := driver.JoinLane(t.e, time.Second)
		if c := t.start(ctx, stranger); !c.hasBegun() {
			t.Error("a member that has met no other waits")
		} else {
			t.finish(c)
		}
		if c := t.start(ctx, nil); !c.hasBegun() {
			t.Error("a transaction without a member waits")
		} else {
			t.finish(c)
		}
		wantVerdict(t, claim(t, t.e, event("a")), engine.Claimed)
		t.finish(a, b)
	})
}

func TestUpdateInsideATurnDoesNotWait(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		a, b := t.start(ctx, t.members[0]), t.start(ctx, t.members[1])
		began := time.Now()
		nested := func(member *driver.LaneMember) func(tx *engine.Tx) error {
			return func(*engine.Tx) error {
				return driver.Update(ctx, t.e, func(tx *engine.Tx) error { return tx.Put([]byte("nested"), nil) }, driver.UpdateOptions{Lane: member})
			}
		}
		a.leave <- func(tx *engine.Tx) error { return errors.Join(nested(nil)(tx), nested(t.members[0])(tx)) }
		if err := <-a.done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("transactions inside a turn took %v", took)
		}
		// A transaction that takes another member's turn waits until its own turn times out.
		b.leave <- nested(t.members[0])
		if err := <-b.done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("a turn of another member inside a turn took %v", took)
		}
	})
}

// keyOf reads and writes a key.
func keyOf(name string) func(tx *engine.Tx) error {
	return func(tx *engine.Tx) error {
		_, _, err := tx.Get([]byte(name))
		return errors.Join(err, tx.Put([]byte(name), nil))
	}
}

// round runs a transaction of each of two members; the second begins while the first one is in its
// closure. It reports whether the second one waited.
func (t *laneTest) round(fn func(member int) func(tx *engine.Tx) error) (waited bool) {
	t.Helper()
	a := t.start(ctx, t.members[0])
	b := t.start(ctx, t.members[1], driver.UpdateOptions{Retries: 10})
	waited = !b.hasBegun()
	a.leave <- fn(0)
	if err := <-a.done; err != nil {
		t.Errorf("Update: %v", err)
	}
	b.leave <- fn(1)
	if err := <-b.done; err != nil {
		t.Errorf("Update: %v", err)
	}
	return waited
}

func TestWorkingLaneRemainsEnabled(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		for i := range 200 {
			if !t.round(func(int) func(tx *engine.Tx) error { return keyOf("hot") }) {
				t.Fatalf("in round %d the members do not take turns any more", i)
			}
			slices.Reverse(t.members) // each is the second one in turn
		}
	})
}

func TestMeetingIsDetectedDespiteManyOtherWrites(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		for i := range 100 {
			waited := t.round(func(member int) func(tx *engine.Tx) error {
				return func(tx *engine.Tx) error {
					if member == 1 {
						update(t, t.e, func(tx *engine.Tx) {
							for n := range 1100 {
								mustPut(t, tx, fmt.Sprint("other ", i, n), "")
							}
						})
					}
					return keyOf("hot")(tx)
				}
			})
			if !waited {
				t.Fatalf("in round %d the members do not take turns any more", i)
			}
		}
	})
}

func TestMembersThatNoLongerMeetRunInParallelAgain(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		rounds := 0
		for t.round(func(member int) func(tx *engine.Tx) error { return keyOf(fmt.Sprint("own of ", member)) }) {
			if rounds++; rounds > 100 {
				t.Fatal("after 100 rounds they still take turns")
			}
		}
		if rounds < 10 {
			t.Errorf("they took turns for only %d rounds", rounds)
		}
	})
}

func TestTransactionThatIsLongerThanItsTurnCommitsInTheEnd(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		move := func(member *driver.LaneMember, takes time.Duration, runs *int) error {
			return driver.Update(ctx, t.e, func(tx *engine.Tx) error {
				*runs++
				if _, _, err := tx.Get([]byte("hot")); err != nil {
					return err
				}
				time.Sleep(takes)
				return tx.Put([]byte("hot"), nil)
			}, driver.UpdateOptions{Retries: 1000, Lane: member})
		}
		short, stop := 0, make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := move(t.members[1], 10*time.Millisecond, &short); err != nil {
					t.Error(err)
				}
			}
		})
		long := 0
		if err := move(t.members[0], 10*time.Second, &long); err != nil || long > 6 {
			t.Errorf("it ran %d times: %v", long, err)
		}
		close(stop)
		wg.Wait()
	})
}

// The bound of a turn is doubled after a conflict, whatever it is.
func TestLongestTurnIsNotShorterAfterAConflict(t *testing.T) {
	inLane(t, 1, func(t *laneTest) {
		longest := driver.JoinLane(t.e, math.MaxInt64)
		t.lose(longest)
		err := driver.Update(ctx, t.e, func(tx *engine.Tx) error {
			_, _, err := tx.Get([]byte("met"))
			update(t, t.e, func(tx *engine.Tx) { mustPut(t, tx, "met", "by another") })
			return errors.Join(err, commits(tx))
		}, driver.UpdateOptions{Lane: longest})
		wantErr(t, err, engine.ErrConflict)
		a := t.start(ctx, longest)
		b := t.start(ctx, t.members[0])
		time.Sleep(24 * time.Hour)
		if !a.hasBegun() || b.hasBegun() {
			t.Error("the other member does not wait for the one with the longest turn")
		}
		t.finish(a, b)
	})
}

// moves runs read-modify-write transactions of members in parallel, and returns how often a closure
// ran for each commit.
func moves(t *testing.T, lane bool) float64 {
	const members, each = 6, 100
	e, m := openMem(t, engine.Options{})
	jitter(m, 1)
	runs := make([]int, members)
	var wg sync.WaitGroup
	for i := range members {
		options := driver.UpdateOptions{Retries: 1_000_000}
		if lane {
			member := driver.JoinLane(e, time.Minute)
			(&laneTest{T: t, e: e}).lose(member)
			options.Lane = member
		}
		wg.Go(func() {
			for n := range each {
				err := driver.Update(ctx, e, func(tx *engine.Tx) error {
					runs[i]++
					err := errors.Join(keyOf(fmt.Sprint(n%3))(tx), keyOf("hot")(tx))
					runtime.Gosched()
					return err
				}, options)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	all := 0
	for _, n := range runs {
		all += n
	}
	return float64(all) / (members * each)
}

func TestMeetingMembersRunOnce(t *testing.T) {
	if with, without := moves(t, true), moves(t, false); with > 1.02 || without < 1.2 {
		t.Errorf("runs for each commit: %.3f with the lane, %.3f without", with, without)
	}
}

// When a transaction runs again, the write that it conflicted with is visible, so that one more run
// is enough.
func TestFailedTransactionRunsAgainWhenTheConflictingWriteIsVisible(t *testing.T) {
	for name, read := range map[string]bool{"at commit": true, "in a read": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, m := openMem(t, engine.Options{})
				handed, apply := make(chan struct{}), make(chan struct{})
				hand := sync.OnceFunc(func() { close(handed) })
				runs, other := 0, make(chan error, 1)
				done := make(chan error, 1)
				go func() {
					done <- e.Update(ctx, func(tx *engine.Tx) error {
						if runs++; read || runs > 1 {
							if err := keyOf("k")(tx); err != nil {
								return err
							}
						}
						if runs == 1 {
							m.Before(storetest.OpApply, func(int) error { hand(); <-apply; return nil })
							go func() { other <- e.Update(ctx, keyOf("k")) }()
							<-handed
						}
						return keyOf("k")(tx)
					}, engine.Retries(1))
				}()
				synctest.Wait()
				if runs != 1 {
					t.Errorf("it ran %d times before the conflicting write was visible", runs)
				}
				close(apply)
				if err := errors.Join(<-done, <-other); err != nil || runs != 2 {
					t.Errorf("%d runs: %v", runs, err)
				}
			})
		})
	}
}

func TestConflictDoesNotWaitForASync(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	other := make(chan error, 1)
	err := e.Update(ctx, func(tx *engine.Tx) error {
		err := keyOf("k")(tx)
		m.HoldSyncs()
		go func() { other <- e.Update(ctx, keyOf("k")) }()
		awaitHeld(t, m)
		return err
	})
	if !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	m.ReleaseSyncs()
	if err := <-other; err != nil {
		t.Error(err)
	}
}

// A transaction that takes longer than the longest turn commits after a few conflicts, though another member
// writes its key all the time, within its turns or beyond them.
func TestALongTransactionCommitsInTheEnd(t *testing.T) {
	for name, other := range map[string]time.Duration{"short": 500 * time.Millisecond, "beyond its turn": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inLane(t, 2, func(t *laneTest) {
				change := func(tx *engine.Tx, takes time.Duration) error {
					_, _, err := tx.Get([]byte("shared"))
					time.Sleep(takes)
					return errors.Join(err, tx.Put([]byte("shared"), nil))
				}
				done := make(chan struct{})
				var others sync.WaitGroup
				commits := 0
				others.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						if driver.Update(ctx, t.e, func(tx *engine.Tx) error { return change(tx, other) }, driver.UpdateOptions{Lane: t.members[1]}) == nil {
							commits++
						}
					}
				})
				calls := 0
				err := driver.Update(ctx, t.e, func(tx *engine.Tx) error {
					if calls++; calls > 20 {
						return errBoom
					}
					return change(tx, 2*time.Minute)
				}, driver.UpdateOptions{Lane: t.members[0], Retries: 100})
				close(done)
				others.Wait()
				if err != nil || calls > 6 || commits == 0 {
					t.Errorf("after %d calls and %d commits of the other one: %v", calls, commits, err)
				}
			})
		})
	}
}

// Others do not wait forever for a member that keeps its turn and does not return.
func TestAKeptTurnIsBounded(t *testing.T) {
	inLane(t, 2, func(t *laneTest) {
		calls, hangs := 0, make(chan struct{})
		var holder sync.WaitGroup
		holder.Go(func() {
			_ = driver.Update(ctx, t.e, func(tx *engine.Tx) error {
				if calls++; calls > 4 {
					<-hangs
					return errBoom
				}
				_, _, err := tx.Get([]byte("r"))
				update(t.T, t.e, func(tx *engine.Tx) { mustPut(t.T, tx, "r", "") })
				return errors.Join(err, tx.Put([]byte("k"), nil))
			}, driver.UpdateOptions{Lane: t.members[0], Retries: 100})
		})
		synctest.Wait()
		began := time.Now()
		if err := driver.Update(ctx, t.e, commits, driver.UpdateOptions{Lane: t.members[1]}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != driver.MaxKept {
			t.Errorf("it waited for %v", took)
		}
		close(hangs)
		holder.Wait()
	})
}

func TestATransactionThatConflictsWithItselfLosesAlone(t *testing.T) {
	inLane(t, 1, func(t *laneTest) {
		for calls := 1; !t.members[0].LosesAlone(); calls++ {
			if calls > 12 {
				t.Fatal("it is not known")
			}
			err := driver.Update(ctx, t.e, func(tx *engine.Tx) error {
				_, _, err := tx.Get([]byte("own"))
				update(t.T, t.e, func(tx *engine.Tx) { mustPut(t.T, tx, "own", "") })
				return errors.Join(err, tx.Put([]byte("k"), nil))
			}, driver.UpdateOptions{Lane: t.members[0]})
			if e, ok := errors.AsType[*engine.ConflictError](err); !ok || string(e.Key) != "own" {
				t.Fatal(err)
			}
		}
		t.members[0].Leave()
	})
}

// A turn that was awaited is that of the member's next transaction, and ends with Leave or after its time
// if there is none.
func TestAnAwaitedTurnIsForTheNextTransaction(t *testing.T) {
	inLane(t, 3, func(t *laneTest) {
		a, b, c := t.members[0], t.members[1], t.members[2]
		waits, turns := make(chan struct{}), make(chan error)
		first := t.start(ctx, a)
		go func() { turns <- b.Await(ctx, t.e, func() error { close(waits); return nil }) }()
		synctest.Wait()
		<-waits
		third := t.start(ctx, c)
		t.finish(first)
		if err := <-turns; err != nil {
			t.Fatal(err)
		}
		if third.hasBegun() {
			t.Error("another member has the turn that was awaited")
		}
		t.finish(t.start(ctx, b))
		if !third.hasBegun() {
			t.Error("the turn did not end with its transaction")
		}
		t.finish(third)

		for name, end := range map[string]func(){"Leave": b.Leave, "its time": func() { time.Sleep(time.Second) }} {
			if err := b.Await(ctx, t.e, func() error { return errBoom }); err != nil {
				t.Fatalf("it waits although no other member has a turn: %v", err)
			}
			next := t.start(ctx, c)
			end()
			if !next.hasBegun() {
				t.Errorf("%s does not end the turn", name)
			}
			t.finish(next)
		}

		last := t.start(ctx, a)
		if err := b.Await(ctx, t.e, func() error { return errBoom }); !errors.Is(err, errBoom) {
			t.Errorf("Await: %v", err)
		}
		t.finish(last, t.start(ctx, c))
	})
}
