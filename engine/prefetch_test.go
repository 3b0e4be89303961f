package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

func mustPrefetch(t testing.TB, tx *engine.Tx, events ...engine.Event) {
	t.Helper()
	if err := driver.Prefetch(tx, events); err != nil {
		t.Fatalf("prefetching: %v", err)
	}
}

// Events that others claim after the prefetch belong to them.
func TestPrefetchReservesNothing(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	a, b, c := event("a"), event("b"), event("c")
	update(t, e, func(tx *engine.Tx) {
		mustPrefetch(t, tx, a, b, c, c)
		wantVerdict(t, claim(t, e, a), engine.Claimed)
		update(t, e, func(other *engine.Tx) {
			wantTx(t, other, b, engine.Claimed)
			wantTx(t, tx, a, engine.Duplicate)
			wantTx(t, tx, b, engine.InFlight)
		})
		wantTx(t, tx, c, engine.Claimed)
		wantTx(t, tx, c, engine.Duplicate)
		wantTx(t, tx, b, engine.Duplicate) // committed now
		wantVerdict(t, claim(t, e, c), engine.InFlight)
	})
	wantVerdict(t, claim(t, e, c), engine.Duplicate)
}

// Prefetch is a hint: its events do not replace those of TryClaim.
func TestPrefetchedEventIsCheckedAsAnyOther(t *testing.T) {
	e, _ := openMem(t, engine.Options{RetentionWeeks: engine.KeepAll})
	blank, far := event("blank"), event("far")
	blank.Origin.Topic = ""
	far.Time = noon.AddDate(1, 0, 0)
	update(t, e, func(tx *engine.Tx) {
		mustPrefetch(t, tx, engine.Event{}, far, event("blank"), event("a"))
		for _, ev := range []engine.Event{{}, far, blank, {}} {
			if r, err := tx.TryClaim(ev); r.Verdict != engine.TooNew && (r.Verdict != engine.Failed || !errors.As(err, new(*engine.EventError))) {
				t.Errorf("%+v: %v %v", ev, r.Verdict, err)
			}
		}
		elsewhere := event("a")
		elsewhere.Scope = "elsewhere"
		mustPrefetch(t, tx, event("a"))
		wantTx(t, tx, elsewhere, engine.Claimed)
	})
	verifyClean(t, e, 1)
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
}

// A store that panics while a claim is checked again leaves nothing reserved.
func TestClaimThatPanickedIsFree(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	ev := event("a")
	deadLetter(t, e, ev)
	update(t, e, func(tx *engine.Tx) {
		first := true
		m.Before(storetest.OpClaim, func(int) error {
			if !first {
				panic("boom")
			}
			first = false
			return nil
		})
		func() {
			defer func() { _ = recover() }()
			_, _ = tx.TryReopen(ev, 0)
			t.Error("no panic")
		}()
		m.Before(storetest.OpClaim, nil)
	})
	replay(t, e, ev, 0, engine.Claimed)
}

// A repetition is a Duplicate of the transaction's own claim, whatever others hold in the previous
// week.
func TestOwnClaimPrecedesAdjacentClaimsOfOthers(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	ev, near := event("a"), event("a")
	ev.ApproximateTime = true
	near.Time = near.Time.AddDate(0, 0, -7)
	update(t, e, func(tx *engine.Tx) {
		wantTx(t, tx, ev, engine.Claimed)
		err := e.Update(ctx, func(other *engine.Tx) error {
			wantTx(t, other, near, engine.Claimed)
			wantTx(t, tx, ev, engine.Duplicate)
			mustPrefetch(t, tx, ev)
			wantTx(t, tx, ev, engine.Duplicate)
			between := ev // others hold the previous week, the transaction itself the next one
			between.ID, between.ApproximateTime = []byte("b"), false
			wantTx(t, tx, between, engine.Claimed)
			between.Time = between.Time.AddDate(0, 0, -14)
			wantTx(t, other, between, engine.Claimed)
			between.Time, between.ApproximateTime = between.Time.AddDate(0, 0, 7), true
			mustPrefetch(t, tx, between)
			wantTx(t, tx, between, engine.Duplicate)
			return errBoom
		})
		if !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
	})
}

// A week that is dropped after the prefetch counts as dropped.
func TestPrefetchedClaimOfAWeekThatIsDroppedIsTooOld(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	old := event("old")
	old.Time = noon.AddDate(0, 0, -14)
	wantVerdict(t, claim(t, e, old), engine.Claimed)
	late := old
	late.ID = []byte("late")
	update(t, e, func(tx *engine.Tx) {
		mustPrefetch(t, tx, late, event("a"))
		for week, _ := weekbucket.Of(old.Time); e.Retention().OldestWeek() <= week; {
			if _, err := e.Retention().DropWeek(ctx, e.Retention().OldestWeek()); err != nil {
				t.Fatal(err)
			}
		}
		wantTx(t, tx, late, engine.TooOld)
		wantTx(t, tx, event("a"), engine.Claimed)
	})
}

// A prefetched event is claimed without the store, but not without a working engine.
func TestPrefetchedClaimNeedsAWorkingEngine(t *testing.T) {
	for want, end := range map[error]func(*engine.Engine, *storetest.Mem){
		engine.ErrClosed: func(e *engine.Engine, _ *storetest.Mem) {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		},
		engine.ErrStopped: func(e *engine.Engine, m *storetest.Mem) {
			m.FailAt(storetest.OpClaim, 1, errors.New("broken"))
			// The store is read, so that nothing is applied that TryClaim would detect.
			if _, err := e.TryClaim(ctx, event("b")); !errors.Is(err, engine.ErrStopped) {
				t.Error(err)
			}
		},
	} {
		judged := counting{}
		e, m := openMem(t, engine.Options{Observer: judged})
		claim(t, e, event("b"))
		clear(judged)
		err := e.Update(ctx, func(tx *engine.Tx) error {
			mustPrefetch(t, tx, event("a"))
			end(e, m)
			if r, err := tx.TryClaim(event("a")); !errors.Is(err, want) || r.Verdict != engine.Failed {
				t.Errorf("%v %v, want %v", r.Verdict, err, want)
			}
			if judged["a"] > 0 {
				t.Error("an unjudged event was observed")
			}
			return nil
		})
		if err == nil {
			t.Error("it commits")
		}
	}
}

// counting counts how often each id was observed.
type counting map[string]int

func (c counting) Claiming(_ context.Context, events []engine.Event) func([]engine.Result) {
	for _, ev := range events {
		c[string(ev.ID)]++
	}
	return nil
}

func (c counting) Updating(context.Context) engine.TxObserver {
	return engine.TxObserver{Claiming: func(ev engine.Event) func(engine.Result) {
		c[string(ev.ID)]++
		return nil
	}}
}

func (counting) Synced(time.Duration, int) {}

// The limit in bytes is the same with and without a prefetch.
func TestPrefetchRespectsTheLimitInBytes(t *testing.T) {
	var caps [2]int
	for i := range caps {
		e, _ := openMem(t, engine.Options{MaxIDBytes: limits.IDBytes})
		update(t, e, func(tx *engine.Tx) {
			for {
				ev := event(fmt.Sprintf("%0*d", limits.IDBytes, caps[i]))
				if i == 1 {
					mustPrefetch(t, tx, ev)
				}
				if r, err := tx.TryClaim(ev); errors.Is(err, engine.ErrLimit) {
					return
				} else if r.Verdict != engine.Claimed {
					t.Fatal(r, err)
				}
				caps[i]++
			}
		})
	}
	if caps[0] != caps[1] {
		t.Errorf("%d claims without, %d with a prefetch", caps[0], caps[1])
	}
}

// The first sighting is the time of the prefetch.
func TestPrefetchedClaimHasTheTimeOfThePrefetch(t *testing.T) {
	c := &clock{t: noon}
	e, _ := openMem(t, engine.Options{Clock: c.now})
	update(t, e, func(tx *engine.Tx) {
		mustPrefetch(t, tx, event("a"))
		c.set(noon.Add(time.Minute))
		if r, err := tx.TryClaim(event("a")); err != nil || !r.Record.FirstSeen.Equal(noon) {
			t.Error(r, err)
		}
	})
}

func TestPrefetchNeedsATransaction(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	var kept *engine.Tx
	update(t, e, func(tx *engine.Tx) { kept = tx })
	for _, tx := range []*engine.Tx{nil, kept} {
		if err := driver.Prefetch(tx, []engine.Event{event("a")}); !errors.Is(err, engine.ErrNoTransaction) {
			t.Error(err)
		}
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
}

func TestPrefetchRespectsTheLimitOfClaims(t *testing.T) {
	e, _ := openMem(t, engine.Options{ExpectedPerWeek: limits.TxClaims})
	ev := func(i int) engine.Event { return event(fmt.Sprint(i)) }
	update(t, e, func(tx *engine.Tx) {
		var chunk []engine.Event
		for i := range limits.TxClaims {
			if i%1000 == 0 {
				chunk = chunk[:0]
				for j := range 1000 {
					chunk = append(chunk, ev(i+j))
				}
				mustPrefetch(t, tx, chunk...)
			}
			wantTx(t, tx, ev(i), engine.Claimed)
		}
		if r, err := tx.TryClaim(ev(limits.TxClaims)); !errors.Is(err, engine.ErrLimit) || r.Verdict != engine.Failed {
			t.Error("a claim beyond the cap:", r, err)
		}
		wantTx(t, tx, ev(7), engine.Duplicate)
	})
}

// A twin does the same without prefetching, and gets the same verdicts.
func TestPrefetchChangesNoVerdict(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 75
	}
	eachSeed(t, seeds, func(t *testing.T, rnd *rand.Rand, _ uint64) {
		ahead, _ := openMem(t, engine.Options{})
		plain, _ := openMem(t, engine.Options{})
		twins := []*engine.Engine{ahead, plain}
		pick := func() engine.Event {
			ev := event(fmt.Sprintf("%d", rnd.IntN(40)))
			ev.Time = ev.Time.AddDate(0, 0, -7*rnd.IntN(2))
			ev.ApproximateTime = rnd.IntN(5) == 0
			if rnd.IntN(20) == 0 {
				ev.Time = ev.Time.AddDate(1, 0, 0) // too new
			}
			return ev
		}
		for range 6 {
			var told [2][]engine.Verdict
			seed, fails := rnd.Uint64(), rnd.IntN(4) == 0
			plan := make([]engine.Event, 30)
			for i := range plan {
				plan[i] = pick()
			}
			for twin, e := range twins {
				rnd := rand.New(rand.NewPCG(seed, 0))
				hint := rand.New(rand.NewPCG(seed, 1))
				err := e.Update(ctx, func(tx *engine.Tx) error {
					points := []engine.Savepoint{}
					tell := func(r engine.Result, err error) {
						if err != nil {
							t.Fatal(err)
						}
						told[twin] = append(told[twin], r.Verdict)
					}
					for i, ev := range plan {
						if n := hint.IntN(12); twin == 0 && n > 0 && hint.IntN(3) == 0 {
							expected := append([]engine.Event{}, plan[i:min(i+n, len(plan))]...)
							if hint.IntN(6) == 0 { // wrongly
								hint.Shuffle(len(expected), func(i, j int) { expected[i], expected[j] = expected[j], expected[i] })
							}
							mustPrefetch(t, tx, expected...)
						}
						switch rnd.IntN(12) {
						case 0: // something else in between
							tell(tx.TryClaim(plan[rnd.IntN(len(plan))]))
						case 1:
							tell(tx.TryReopen(plan[rnd.IntN(len(plan))], uint64(rnd.IntN(2))))
						case 2:
							if _, err := tx.DeadLetter(plan[rnd.IntN(len(plan))]); err != nil && !errors.Is(err, engine.ErrNotClaimed) {
								t.Fatal(err)
							}
						case 3:
							if len(points) > 0 {
								points = points[:rnd.IntN(len(points))+1]
								if err := tx.RollbackTo(points[len(points)-1]); err != nil {
									t.Fatal(err)
								}
							}
						}
						p, err := tx.Savepoint()
						if err != nil {
							t.Fatal(err)
						}
						points = append(points, p)
						tell(tx.TryClaim(ev))
					}
					if fails {
						return errBoom
					}
					return nil
				})
				if err != nil && !errors.Is(err, errBoom) {
					t.Fatal(err)
				}
			}
			if !slices.Equal(told[0], told[1]) {
				t.Fatalf("verdicts with prefetching, and without:\n%v\n%v", told[0], told[1])
			}
			for i := range 40 { // all is committed alike, and nothing is reserved any more
				for week := range 2 {
					ev := event(fmt.Sprint(i))
					at := ev.Time.AddDate(0, 0, -7*week)
					with, found, err := ahead.Admin().Lookup(ctx, ev.Scope, ev.ID, at)
					without, alsoFound, alsoErr := plain.Admin().Lookup(ctx, ev.Scope, ev.ID, at)
					if with != without || found != alsoFound || err != nil || alsoErr != nil {
						t.Fatalf("event %d: %v %v with prefetching, %v %v without; %v, %v", i, with, found, without, alsoFound, err, alsoErr)
					}
				}
			}
		}
		for i := range 80 {
			for week := range 2 {
				ev := event(fmt.Sprint(i))
				ev.Time = ev.Time.AddDate(0, 0, -7*week)
				if r := claim(t, ahead, ev); r.Verdict == engine.InFlight {
					t.Fatalf("event %d is held by nobody", i)
				}
			}
		}
	})
}
