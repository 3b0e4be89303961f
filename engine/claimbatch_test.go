package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// ended is a context that has ended: Wait returns only what is there.
func ended() context.Context {
	over, cancel := context.WithCancel(ctx)
	cancel()
	return over
}

// wantOpen fails the test if the results of a batch are there.
func wantOpen(t testing.TB, b *engine.ClaimBatch) {
	t.Helper()
	if results, err := b.Wait(ended()); results != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("before the batch is durable: %v, %v", results, err)
	}
}

// wantBatch waits for a batch, each event of which has to get the verdict.
func wantBatch(t testing.TB, b *engine.ClaimBatch, n int, want engine.Verdict) {
	t.Helper()
	results, err := b.Wait(ctx)
	if err != nil || len(results) != n {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for _, r := range results {
		wantVerdict(t, r, want)
	}
}

func TestStartedBatchesAreInFlightTogether(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	first := e.StartClaimBatch(ctx, manyEvents(1000))
	awaitHeld(t, m)
	second := e.StartClaimBatch(ctx, []engine.Event{event("a"), event("b")})
	repeated := e.StartClaimBatch(ctx, []engine.Event{event("b"), event("a")})
	for _, b := range []*engine.ClaimBatch{first, second, repeated} {
		wantOpen(t, b)
	}
	m.ReleaseSyncs()
	wantBatch(t, repeated, 2, engine.Duplicate) // in any order
	wantBatch(t, first, 1000, engine.Claimed)
	wantBatch(t, second, 2, engine.Claimed)
	wantBatch(t, second, 2, engine.Claimed) // once more
	if s := stats(t, e).Verdicts; s[engine.Claimed] != 1002 || s[engine.Duplicate] != 2 {
		t.Errorf("counted: %v", s)
	}
	mustExpect(t, open(t, m.Crash(), engine.Options{}), []engine.Event{event("a"), event("event-999")}, engine.Duplicate)
}

// A duplicate of what is visible and not durable waits, too, though nothing of its batch is left
// to decide.
func TestDuplicatesOfAStartedBatchWaitForWhatTheyRestOn(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	first := e.StartClaimBatch(ctx, []engine.Event{event("a")})
	awaitHeld(t, m) // it is applied
	reads := m.Calls(storetest.OpClaim)
	again := e.StartClaimBatch(ctx, []engine.Event{event("a")})
	if n := m.Calls(storetest.OpClaim) - reads; n != 1 {
		t.Fatalf("%d reads: the duplicate is not one that the store had", n)
	}
	wantOpen(t, first)
	wantOpen(t, again)
	m.ReleaseSyncs()
	wantBatch(t, again, 1, engine.Duplicate)
	wantBatch(t, first, 1, engine.Claimed)
}

func TestCallerMayChangeTheEventsOfAStartedBatch(t *testing.T) {
	watched := make(idWatcher, 10)
	e, m := openMem(t, engine.Options{Observer: watched})
	m.HoldSyncs()
	events := []engine.Event{event("a"), event("b")}
	b := e.StartClaimBatch(ctx, events)
	for i := range events {
		copy(events[i].ID, "x")
		events[i] = engine.Event{}
	}
	m.ReleaseSyncs()
	results, err := b.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"a", "b"} {
		if r := results[i]; r.Verdict != engine.Claimed || r.Record.Origin != event(id).Origin {
			t.Errorf("%q: %v", id, r)
		}
		if got := receive(t, watched); got != id {
			t.Errorf("the observer saw %q, want %q", got, id)
		}
		wantVerdict(t, claim(t, e, event(id)), engine.Duplicate)
	}
}

// A idWatcher is told the ids that were claimed, when their results are there.
type idWatcher chan string

func (w idWatcher) Claiming(_ context.Context, events []engine.Event) func([]engine.Result) {
	return func(results []engine.Result) {
		for i := range results {
			if results[i].IsClaimed() {
				w <- string(events[i].ID)
			}
		}
	}
}

func (idWatcher) Updating(context.Context) engine.TxObserver { return engine.TxObserver{} }

func (idWatcher) Synced(time.Duration, int) {}

func TestCloseWaitsForStartedBatches(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	asked, forgotten := e.StartClaimBatch(ctx, manyEvents(600)), e.StartClaimBatch(ctx, []engine.Event{event("a")})
	wantOpen(t, forgotten) // and it is not waited for again
	awaitHeld(t, m)
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	for {
		if _, err := e.Stats(); errors.Is(err, engine.ErrClosed) {
			break
		}
		runtime.Gosched()
	}
	late := e.StartClaimBatch(ctx, []engine.Event{event("late")})
	if results, err := late.Wait(ctx); !errors.Is(err, engine.ErrClosed) || len(results) != 1 || results[0].Verdict != engine.Failed {
		t.Errorf("started after Close: %v, %v", results, err)
	}
	wantOpen(t, asked)
	m.ReleaseSyncs()
	if err := receive(t, closed); err != nil {
		t.Fatal(err)
	}
	wantBatch(t, asked, 600, engine.Claimed)
	e = open(t, m.Crash(), engine.Options{})
	mustExpect(t, e, append(manyEvents(600), event("a")), engine.Duplicate)
	mustExpect(t, e, []engine.Event{event("late")}, engine.Claimed)
}

func TestStartedBatchesOnAStoreThatFails(t *testing.T) {
	full := errors.New("no space left")
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait} {
		m := storetest.NewMem(storage.Identity{})
		e := open(t, m, engine.Options{})
		e.AwaitBehind(t)
		durable := e.StartClaimBatch(ctx, []engine.Event{event("a")})
		if _, err := durable.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		m.FailAt(op, 1, full)
		failed := []*engine.ClaimBatch{
			e.StartClaimBatch(ctx, []engine.Event{event("b"), event("c")}), e.StartClaimBatch(ctx, []engine.Event{event("d")}),
		}
		for _, b := range failed {
			results, err := b.Wait(ctx)
			if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, full) || results[0].Verdict != engine.Failed {
				t.Errorf("%s: %v, %v", op, results, err)
			}
		}
		wantBatch(t, durable, 1, engine.Claimed)
		results, err := e.StartClaimBatch(ctx, []engine.Event{event("e")}).Wait(ctx)
		if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, full) || results[0].Verdict != engine.Failed {
			t.Errorf("%s, started after the failure: %v, %v", op, results, err)
		}
		mustExpect(t, open(t, m.Crash(), engine.Options{}), []engine.Event{event("a")}, engine.Duplicate)
	}
}

// A batch whose outcome is unknown says so in its error.
func TestStartedBatchWhoseSyncFails(t *testing.T) {
	full := errors.New("no space left")
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	b := e.StartClaimBatch(ctx, []engine.Event{event("a"), event("b")})
	awaitHeld(t, m)
	rests := e.StartClaimBatch(ctx, []engine.Event{event("a")}) // on what is visible
	wantOpen(t, b)
	wantOpen(t, rests)
	m.Fail(full)
	if results, err := rests.Wait(ctx); !errors.Is(err, engine.ErrStopped) || len(results) != 1 || results[0].Verdict != engine.Failed {
		t.Errorf("a duplicate of what is not durable: %v, %v", results, err)
	}
	results, err := b.Wait(ctx)
	if !errors.Is(err, engine.ErrStopped) || !errors.Is(err, full) || !errors.Is(err, engine.ErrOutcomeUnknown) || len(results) != 2 {
		t.Fatalf("%v, %v", results, err)
	}
	for _, r := range results {
		if r.Verdict != engine.Failed || !errors.Is(r.Err, engine.ErrOutcomeUnknown) {
			t.Error(r)
		}
	}
}

func TestBatchThatIsStartedWithAnEndedContextClaimsNothing(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	b := e.StartClaimBatch(ended(), []engine.Event{event("a"), event("b")})
	results, err := b.Wait(ctx)
	if !errors.Is(err, context.Canceled) || len(results) != 2 || results[1].Verdict != engine.Failed || !errors.Is(results[1].Err, context.Canceled) {
		t.Errorf("%v, %v", results, err)
	}
	mustExpect(t, e, []engine.Event{event("a"), event("b")}, engine.Claimed)
}

// The queue to the committer is bounded: a batch that it has no room for is not begun if its
// context ends meanwhile.
func TestBatchThatFindsNoRoomEndsWithItsContext(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	var started []*engine.ClaimBatch
	events := manyEvents(16 * engine.MaxBatchEvents)
	for len(events) > 0 {
		during, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // it ends only when there is no room
		b := e.StartClaimBatch(during, events[:256])
		cancel()
		if _, err := b.Wait(ended()); errors.Is(err, context.DeadlineExceeded) {
			break
		}
		started, events = append(started, b), events[256:]
	}
	if len(events) == 0 {
		t.Errorf("%d batches are in flight", len(started))
	}
	m.ReleaseSyncs()
	for _, b := range started {
		wantBatch(t, b, 256, engine.Claimed)
	}
	for len(events) > 0 {
		wantBatch(t, e.StartClaimBatch(ctx, events[:256]), 256, engine.Claimed)
		events = events[256:]
	}
}

func TestStartedBatchHasTheDefaultScope(t *testing.T) {
	e, _ := openMem(t, engine.Options{DefaultScope: "billing"})
	ev := event("a")
	ev.Scope = ""
	wantBatch(t, e.StartClaimBatch(ctx, []engine.Event{ev}), 1, engine.Claimed)
	wantVerdict(t, claim(t, e, event("a")), engine.Duplicate)
}

// seeing is an observer that looks at all results.
type seeing struct {
	engine.Observer
	claimed int
}

func (s *seeing) Claiming(context.Context, []engine.Event) func([]engine.Result) {
	return func(results []engine.Result) {
		for i := range results {
			if results[i].Verdict == engine.Claimed && results[i].Record.Origin.Topic != "" {
				s.claimed++
			}
		}
	}
}

func (*seeing) Updating(context.Context) engine.TxObserver { return engine.TxObserver{} }
func (*seeing) Synced(time.Duration, int)                  {}

// The committer still decides the first parts of a batch when the store panics in the last one: the
// race detector sees an observer that reads its results.
func TestObserverGetsNoUnfinishedResultsWhenTheStorePanics(t *testing.T) {
	o := &seeing{}
	e, m := openMem(t, engine.Options{Observer: o, RecentClaims: -1})
	known := event("known")
	wantVerdict(t, claim(t, e, known), engine.Claimed)
	o.claimed = 0
	events := make([]engine.Event, 4097)
	for i := range events {
		events[i] = event(fmt.Sprint("event ", i))
	}
	events[len(events)-1] = known
	m.Before(storetest.OpClaim, func(int) error { panic("boom") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = e.TryClaimBatch(ctx, events)
	}()
	m.Before(storetest.OpClaim, nil)
	if o.claimed != 0 {
		t.Errorf("the observer got %d results that were not final", o.claimed)
	}
}

// appliesIn calls do, and returns how many batches reach the store meanwhile.
func appliesIn(m *storetest.Mem, do func()) int {
	before := m.Calls(storetest.OpApply)
	do()
	return m.Calls(storetest.OpApply) - before
}

func TestBatchOfClaimsIsOneBatchOfTheStore(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	e.AwaitBehind(t)
	events := manyEvents(10 * engine.FewGroupClaims)
	for _, c := range []struct{ events, applies int }{
		{1, 1}, {256, 1}, {257, 1}, {1000, 1}, {engine.FewGroupClaims, 1},
	} {
		n := appliesIn(m, func() { mustExpect(t, e, events[:c.events], engine.Claimed) })
		if n != c.applies {
			t.Errorf("%d events are %d batches of the store, want %d", c.events, n, c.applies)
		}
		events = events[c.events:]
	}
	// the last ones may be prepared while the first ones are applied
	n := appliesIn(m, func() { mustExpect(t, e, events[:4*engine.FewGroupClaims], engine.Claimed) })
	if n > 4 {
		t.Errorf("%d events are %d batches of the store", 4*engine.FewGroupClaims, n)
	}
}

// The committer does not wait for parts of a batch that need no decision.
func TestBatchWhoseLastEventsNeedNoDecision(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	e.AwaitBehind(t)
	known := manyEvents(600)
	mustExpect(t, e, known, engine.Claimed)
	malformed := make([]engine.Event, 600)
	for name, rest := range map[string][]engine.Event{"duplicates": known, "malformed": malformed} {
		events := []engine.Event{event("first, before " + name)}
		events = append(append(events, rest...), rest...)
		var results []engine.Result
		n := appliesIn(m, func() {
			var err error
			if results, err = e.StartClaimBatch(ctx, events).Wait(ctx); err != nil {
				t.Fatal(err)
			}
		})
		wantVerdict(t, results[0], engine.Claimed)
		if n != 1 {
			t.Errorf("%s: %d batches of the store", name, n)
		}
	}
}

// Nor for those that cannot be prepared.
func TestBatchWhoseLastEventsCannotBeRead(t *testing.T) {
	e, m := openMem(t, engine.Options{RecentClaims: -1})
	e.AwaitBehind(t)
	known := event("known")
	wantVerdict(t, claim(t, e, known), engine.Claimed)
	broken := errors.New("input/output error")
	m.FailAt(storetest.OpClaim, 1, broken)
	results, err := e.TryClaimBatch(ctx, append(manyEvents(300), known))
	if !errors.Is(err, broken) || results[300].Verdict != engine.Failed {
		t.Fatalf("%v, %v", results[300], err)
	}
	if err := e.Close(); !errors.Is(err, broken) {
		t.Fatal(err)
	}
}

// A caller that waits gets its answer although another one has handed over a part of its batch only.
func TestPartOfABatchHoldsUpNoOtherCaller(t *testing.T) {
	reading, release := make(chan struct{}), make(chan struct{})
	e, m := openMem(t, engine.Options{RecentClaims: -1})
	e.AwaitBehind(t)
	known := event("known")
	wantVerdict(t, claim(t, e, known), engine.Claimed)
	m.Before(storetest.OpClaim, func(int) error {
		close(reading)
		<-release
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := e.TryClaimBatch(ctx, append(manyEvents(300), known)) // its second part is read
		done <- err
	}()
	receive(t, reading)
	wantVerdict(t, claim(t, e, event("other")), engine.Claimed)
	wantVerdict(t, claim(t, e, event("another")), engine.Claimed)
	close(release)
	if err := receive(t, done); err != nil {
		t.Fatal(err)
	}
}
