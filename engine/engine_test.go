package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

var (
	ctx  = context.Background()
	noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) // a Wednesday
)

// fixed is a clock that the test sets.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

func open(t testing.TB, store storage.Store, o engine.Options) *engine.Engine {
	t.Helper()
	if o.Clock == nil {
		o.Clock = (&clock{t: noon}).now
	}
	if o.ExpectedPerWeek == 0 {
		o.ExpectedPerWeek = 1000 // filters of the default size take longer to make than most tests
	}
	o.Nightly.Off = true // it reads the clock and writes; its tests call engine.Open
	e, err := engine.Open(store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan error, 1)
		go func() { closed <- e.Close() }()
		select {
		case err := <-closed:
			if err != nil && !errors.Is(err, engine.ErrClosed) && !errors.Is(err, engine.ErrStopped) {
				t.Errorf("closing: %v", err)
			}
		case <-time.After(engine.Patience): // the test blocks what Close waits for
			t.Errorf("Close does not return:\n%s", engine.Stacks())
		}
	})
	return e
}

// receive receives from ch, and fails the test if nothing arrives.
func receive[T any](t testing.TB, ch <-chan T) (x T) {
	t.Helper()
	select {
	case x = <-ch:
	case <-time.After(engine.Patience):
		t.Fatalf("nothing comes:\n%s", engine.Stacks())
	}
	return x
}

// awaitHeld waits until a sync of the store is blocked, and fails the test if none is.
func awaitHeld(t testing.TB, m *storetest.Mem) {
	t.Helper()
	held := make(chan struct{})
	go func() {
		defer close(held)
		m.AwaitHeld()
	}()
	receive(t, held)
}

// openMem opens a new store in memory, and waits until the background work of Open is done: a
// request of it would delay the requests of a test that blocks a batch.
func openMem(t testing.TB, o engine.Options) (*engine.Engine, *storetest.Mem) {
	t.Helper()
	m := storetest.NewMem(storage.Identity{})
	e := open(t, m, o)
	e.AwaitBehind(t)
	t.Cleanup(m.ReleaseSyncs) // before Close
	return e, m
}

func event(id string) engine.Event {
	return engine.Event{Scope: "billing", ID: []byte(id), Time: noon, Origin: engine.Origin{Topic: "orders", Partition: 3, Offset: 7}}
}

func claim(t testing.TB, e *engine.Engine, ev engine.Event) engine.Result {
	t.Helper()
	r, err := e.TryClaim(ctx, ev)
	if err != nil {
		t.Fatalf("claiming %q: %v", ev.ID, err)
	}
	return r
}

func wantVerdict(t testing.TB, r engine.Result, want engine.Verdict) {
	t.Helper()
	if r.Verdict != want {
		t.Fatalf("verdict %v (%v), want %v", r.Verdict, r.Err, want)
	}
}

func TestFirstIsClaimedLaterAreDuplicatesWithTheFirstRecord(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	first := claim(t, e, event("a"))
	wantVerdict(t, first, engine.Claimed)
	again := event("a")
	again.Origin.Offset = 99
	second := claim(t, e, again)
	wantVerdict(t, second, engine.Duplicate)
	if second.Record != first.Record || second.Record.Origin.Offset != 7 || !second.Record.FirstSeen.Equal(noon) {
		t.Fatalf("duplicate has %+v, first was %+v", second.Record, first.Record)
	}
}

func TestOneOf32GoroutinesClaims(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	for round := range 50 {
		ev := event(fmt.Sprint("round", round))
		var wg sync.WaitGroup
		verdicts := make(chan engine.Verdict, 32)
		for range 32 {
			wg.Go(func() { verdicts <- claim(t, e, ev).Verdict })
		}
		wg.Wait()
		close(verdicts)
		n := map[engine.Verdict]int{}
		for v := range verdicts {
			n[v]++
		}
		if n[engine.Claimed] != 1 || n[engine.Duplicate] != 31 {
			t.Fatalf("round %d: %v", round, n)
		}
	}
}

func TestNoVerdictLeavesBeforeItsSync(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	told := make(chan engine.Result, 2)
	go func() { told <- claim(t, e, event("a")) }()
	awaitHeld(t, m)
	go func() { told <- claim(t, e, event("a")) }()
	select {
	case r := <-told:
		t.Fatalf("got %v while nothing is durable", r.Verdict)
	case <-time.After(50 * time.Millisecond):
	}
	m.ReleaseSyncs()
	a, b := receive(t, told), receive(t, told)
	if a.Verdict == b.Verdict || a.Verdict+b.Verdict != engine.Claimed+engine.Duplicate {
		t.Fatalf("told %v and %v", a.Verdict, b.Verdict)
	}
}

func TestTransactionCommitsAllOrNothing(t *testing.T) {
	e, _ := openMem(t, engine.Options{DefaultScope: "billing"})
	pos := engine.OffsetKey{Group: "g", Topic: "orders", Partition: 3}
	work := func(fail error) error {
		return e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(event("a"))
			if err != nil {
				return err
			}
			wantVerdict(t, r, engine.Claimed)
			if own := claim(t, e, event("a")); own.Verdict != engine.InFlight {
				t.Errorf("others are told %v", own.Verdict)
			}
			if err := tx.Put([]byte("balance"), []byte("7")); err != nil {
				return err
			}
			if v, ok, err := tx.Get([]byte("balance")); err != nil || !ok || string(v) != "7" {
				t.Errorf("own write reads %q %v %v", v, ok, err)
			}
			return errors.Join(tx.SetOffset(pos, engine.Offset{Next: 8}), fail)
		})
	}
	boom := errors.New("boom")
	if err := work(boom); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if _, found, err := e.Admin().Offset(ctx, pos); found || err != nil {
		t.Fatal("offset of a failed transaction", found, err)
	}
	if err := work(nil); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
	if o, found, err := e.Admin().Offset(ctx, pos); !found || err != nil || o.Next != 8 {
		t.Fatal(o, found, err)
	}
}

func TestReopenFindsClaims(t *testing.T) {
	for _, n := range []int{0, 1, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := storetest.NewMem(storage.Identity{})
			e := open(t, m, engine.Options{})
			events := make([]engine.Event, n)
			for i := range events {
				events[i] = event(fmt.Sprint(i))
			}
			if _, err := e.TryClaimBatch(ctx, events); err != nil {
				t.Fatal(err)
			}
			crashed := m.CrashClone(0)
			for _, m := range []*storetest.Mem{crashed} {
				e := open(t, m, engine.Options{})
				rs, err := e.TryClaimBatch(ctx, events)
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range rs {
					if r.Verdict != engine.Duplicate {
						t.Fatalf("%d: %v", i, r.Verdict)
					}
				}
				if rep, err := e.Admin().Verify(ctx); err != nil || rep.Total != 0 || int(rep.Claims) != n {
					t.Fatalf("verify: %+v %v", rep, err)
				}
			}
		})
	}
}
