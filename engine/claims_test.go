package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storetest"
)

func TestRejectedEventNamesItsField(t *testing.T) {
	with := func(change func(ev *engine.Event)) engine.Event {
		ev := event("a")
		change(&ev)
		return ev
	}
	cases := []struct {
		name, field string
		ev          engine.Event
	}{
		{"no scope", "scope", with(func(ev *engine.Event) { ev.Scope = "" })},
		{"blank scope", "scope", with(func(ev *engine.Event) { ev.Scope = " \t\n\u00a0" })},
		{"long scope", "scope", with(func(ev *engine.Event) { ev.Scope = strings.Repeat("s", limits.ScopeBytes+1) })},
		{"no id", "id", with(func(ev *engine.Event) { ev.ID = nil })},
		{"empty id", "id", with(func(ev *engine.Event) { ev.ID = []byte{} })},
		{"long id", "id", with(func(ev *engine.Event) { ev.ID = make([]byte, engine.DefaultMaxIDBytes+1) })},
		{"no time", "time", with(func(ev *engine.Event) { ev.Time = time.Time{} })},
		{"time before year 1", "time", with(func(ev *engine.Event) { ev.Time = time.Date(0, 12, 31, 23, 59, 59, 0, time.UTC) })},
		{"time after year 9999", "time", with(func(ev *engine.Event) { ev.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) })},
		{"no topic", "topic", with(func(ev *engine.Event) { ev.Origin.Topic = "" })},
		{"long topic", "topic", with(func(ev *engine.Event) { ev.Origin.Topic = strings.Repeat("t", limits.TopicBytes+1) })},
	}
	e, m := openMem(t, engine.Options{})
	applied := m.Calls(storetest.OpApply)
	check := func(t *testing.T, r engine.Result, err error, field string) {
		t.Helper()
		var refused *engine.EventError
		if !errors.As(err, &refused) || refused.Field != field || r.Verdict != engine.Failed || r.Err.Error() != err.Error() {
			t.Errorf("got %v, %v: want Failed with an EventError of %q", r, err, field)
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, err := e.TryClaim(ctx, c.ev)
			check(t, r, err, c.field)
			check(t, r, e.CheckEvent(c.ev), c.field)
			err = e.Update(ctx, func(tx *engine.Tx) error {
				r, err := tx.TryClaim(c.ev)
				check(t, r, err, c.field)
				return nil // a rejected event does not spoil the transaction
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for _, ev := range []engine.Event{event("a"), with(func(ev *engine.Event) { ev.Time = ev.Time.AddDate(1000, 0, 0) })} {
		if err := e.CheckEvent(ev); err != nil {
			t.Errorf("%v: %v", ev.Time, err)
		}
	}
	if n := m.Calls(storetest.OpApply) - applied; n != 0 {
		t.Errorf("rejected events made %d batches", n)
	}
}

func TestRejectedEventDelaysNoOtherInItsBatch(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	bad, late, soon := event("bad"), event("late"), event("soon")
	bad.Origin.Topic = ""
	late.Time = noon.AddDate(0, 0, -7*6)
	soon.Time = noon.AddDate(0, 0, 2)
	claim(t, e, event("there"))
	rs, err := e.TryClaimBatch(ctx, []engine.Event{event("a"), bad, event("b"), late, soon, event("a"), event("there"), event("c"), event("c")})
	if err != nil {
		t.Fatal(err)
	}
	want := []engine.Verdict{
		engine.Claimed, engine.Failed, engine.Claimed, engine.TooOld, engine.TooNew,
		engine.Duplicate, engine.Duplicate, engine.Claimed, engine.Duplicate,
	}
	for i, r := range rs {
		if r.Verdict != want[i] || (r.Err != nil) != (want[i] == engine.Failed) {
			t.Errorf("event %d: %v (%v), want %v", i, r.Verdict, r.Err, want[i])
		}
	}
	if rs[5].Record != rs[0].Record || rs[8].Record != rs[7].Record {
		t.Error("a repetition within the batch does not return the record of its first occurrence")
	}
	if rs, err := e.TryClaimBatch(ctx, nil); len(rs) != 0 || err != nil {
		t.Errorf("an empty batch: %v, %v", rs, err)
	}
}

func TestRepetitionOfALeasedEventInABatchIsPending(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	rs, err := e.TryClaimBatch(ctx, []engine.Event{leasedEvent("a"), leasedEvent("a"), event("a")})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []engine.Verdict{engine.Claimed, engine.Pending, engine.Pending} {
		wantVerdict(t, rs[i], want)
	}
	if rs[0].Lease == nil || rs[1].Lease != nil {
		t.Error("the first event alone has a lease:", rs)
	}
}

func TestBatchLongerThanOneStoreBatch(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	events := make([]engine.Event, engine.MaxBatchEvents+10)
	for i := range events {
		events[i] = event(fmt.Sprint(i))
	}
	events[len(events)-1] = events[0] // a repetition in another part
	rs, err := e.TryClaimBatch(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs[:len(rs)-1] {
		if r.Verdict != engine.Claimed {
			t.Fatalf("event %d: %v", i, r.Verdict)
		}
	}
	wantVerdict(t, rs[len(rs)-1], engine.Duplicate)
}

func TestEmptyScopeIsTheDefaultScope(t *testing.T) {
	unscoped := event("a")
	unscoped.Scope = ""
	calls := map[string]func(e *engine.Engine) error{
		"TryClaim":      func(e *engine.Engine) error { return second(e.TryClaim(ctx, unscoped)) },
		"TryClaimBatch": func(e *engine.Engine) error { return batchError(e.TryClaimBatch(ctx, []engine.Event{unscoped})) },
		"Tx.TryClaim": func(e *engine.Engine) error {
			return e.Update(ctx, func(tx *engine.Tx) error { return second(tx.TryClaim(unscoped)) })
		},
		"Prefetch": func(e *engine.Engine) error {
			return e.Update(ctx, func(tx *engine.Tx) error {
				events := []engine.Event{unscoped}
				err := driver.Prefetch(tx, events)
				if events[0].Scope != "" {
					t.Error("the caller's events were changed")
				}
				return errors.Join(err, second(tx.TryClaim(unscoped)))
			})
		},
		"Tx.TryReopen": func(e *engine.Engine) error {
			return e.Update(ctx, func(tx *engine.Tx) error { return second(tx.TryReopen(unscoped, 0)) })
		},
		"Tx.DeadLetter": func(e *engine.Engine) error {
			return e.Update(ctx, func(tx *engine.Tx) error {
				_, err := tx.TryClaim(event("a"))
				return errors.Join(err, second(tx.DeadLetter(unscoped)))
			})
		},
		"Tx.SetData": func(e *engine.Engine) error {
			return e.Update(ctx, func(tx *engine.Tx) error {
				_, err := tx.TryClaim(event("a"))
				return errors.Join(err, tx.SetData(unscoped, []byte("x")))
			})
		},
		"Unclaim": func(e *engine.Engine) error {
			r, err := e.TryClaim(ctx, event("a"))
			return errors.Join(err, e.Update(ctx, func(tx *engine.Tx) error { return driver.Unclaim(tx, unscoped, r.Record) }))
		},
		"Lookup": func(e *engine.Engine) error {
			_, err := e.TryClaim(ctx, event("a"))
			_, found, lookup := e.Admin().Lookup(ctx, "", []byte("a"), noon)
			if err = errors.Join(err, lookup); err == nil && !found {
				t.Error("Lookup found nothing")
			}
			return err
		},
		"Forget": func(e *engine.Engine) error {
			_, err := e.TryClaim(ctx, event("a"))
			found, forget := e.Admin().Forget(ctx, "", []byte("a"), noon)
			if err = errors.Join(err, forget); err == nil && !found {
				t.Error("Forget found nothing")
			}
			return err
		},
	}
	gone := map[string]bool{"Unclaim": true, "Forget": true}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			without, _ := openMem(t, engine.Options{})
			var refused *engine.EventError
			if err := call(without); !errors.As(err, &refused) || refused.Field != "scope" {
				t.Errorf("without a default scope: %v", err)
			}
			with, _ := openMem(t, engine.Options{DefaultScope: "billing"})
			if err := call(with); err != nil {
				t.Fatal(err)
			}
			want := engine.Duplicate
			if gone[name] {
				want = engine.Claimed
			}
			wantVerdict(t, claim(t, with, event("a")), want)
		})
	}
}

// batchError returns the first error of a batch.
func batchError(results []engine.Result, err error) error {
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	return err
}

func TestScopesOfPodsAreSeparate(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	for _, scope := range []string{"push", "push-pod-1", "push-pod-2", "push-pod-10", "push\x00", "push\x00\x01", " push", "PUSH"} {
		ev := event("a")
		ev.Scope = scope
		if r := claim(t, e, ev); r.Verdict != engine.Claimed {
			t.Errorf("%q: %v", scope, r.Verdict)
		}
		wantVerdict(t, claim(t, e, ev), engine.Duplicate)
	}
}

func TestIDsAreAnyBytes(t *testing.T) {
	ids := [][]byte{
		{0}, {0, 0}, {0xFF}, {0, 0xFF}, {0, 1}, {1}, {2}, {3}, []byte("|"), []byte("a|b"), []byte("a"), []byte("ab"), []byte("A"),
		[]byte("c9b1f8a0-3a52-4f0e-8f4b-000102030405"), // packed
		[]byte("C9B1F8A0-3A52-4F0E-8F4B-000102030405"), // another one
		[]byte("c9b1f8a03a524f0e8f4b000102030405"),
		{0xc9, 0xb1, 0xf8, 0xa0, 0x3a, 0x52, 0x4f, 0x0e, 0x8f, 0x4b, 0, 1, 2, 3, 4, 5},
		bytes.Repeat([]byte{'x'}, limits.IDBytes), bytes.Repeat([]byte{'x'}, limits.IDBytes-1), bytes.Repeat([]byte{0}, limits.IDBytes),
	}
	e, _ := openMem(t, engine.Options{MaxIDBytes: limits.IDBytes})
	for pass, want := range []engine.Verdict{engine.Claimed, engine.Duplicate} {
		for _, id := range ids {
			ev := event("")
			ev.ID = bytes.Clone(id)
			r := claim(t, e, ev)
			clear(ev.ID) // the engine keeps no reference
			if r.Verdict != want {
				t.Errorf("pass %d, id %.20q of %d bytes: %v", pass, id, len(id), r.Verdict)
			}
			if _, found, err := e.Admin().Lookup(ctx, "billing", id, noon); !found || err != nil {
				t.Errorf("id %.20q is not found: %v", id, err)
			}
		}
	}
}

func TestIDCapIsAnOption(t *testing.T) {
	e, _ := openMem(t, engine.Options{MaxIDBytes: 3})
	wantVerdict(t, claim(t, e, event("abc")), engine.Claimed)
	r, err := e.TryClaim(ctx, event("abcd"))
	var refused *engine.EventError
	if !errors.As(err, &refused) || refused.Field != "id" {
		t.Fatalf("told %v, %v", r, err)
	}
}

func TestTooNewBeginsBeyondTheSkew(t *testing.T) {
	for _, skew := range []time.Duration{time.Nanosecond, time.Hour, engine.DefaultAllowedSkew, limits.AllowedSkew} {
		e, m := openMem(t, engine.Options{AllowedSkew: skew})
		edge, beyond := event("edge"), event("beyond")
		edge.Time, beyond.Time = noon.Add(skew), noon.Add(skew+1)
		wantVerdict(t, claim(t, e, edge), engine.Claimed)
		before := m.Calls(storetest.OpApply)
		wantVerdict(t, claim(t, e, beyond), engine.TooNew)
		beyond.Time = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC)
		wantVerdict(t, claim(t, e, beyond), engine.TooNew)
		err := e.Update(ctx, func(tx *engine.Tx) error {
			r, err := tx.TryClaim(beyond)
			wantVerdict(t, r, engine.TooNew)
			return err
		})
		if err != nil || m.Calls(storetest.OpApply) != before {
			t.Errorf("a claim that is too new was written: %v", err)
		}
	}
}

func TestSameIDInAnotherWeekIsAnotherEvent(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	sunday := event("a")
	sunday.Time = time.Date(2026, 3, 1, 23, 59, 59, 999, time.UTC)
	monday := event("a")
	monday.Time = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	tokyo := event("a") // the same instant in another zone
	tokyo.Time = monday.Time.In(time.FixedZone("JST", 9*3600))
	wantVerdict(t, claim(t, e, sunday), engine.Claimed)
	wantVerdict(t, claim(t, e, monday), engine.Claimed)
	wantVerdict(t, claim(t, e, tokyo), engine.Duplicate)
}

func TestAnswersDoNotDependOnTheCache(t *testing.T) {
	for name, size := range map[string]int{"off": -1, "of one": 1, "default": 0} {
		t.Run(name, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{RecentClaims: size})
			for round := range 3 {
				for i := range 40 {
					ev := event(fmt.Sprint(i % 20))
					want := engine.Duplicate
					if round == 0 && i < 20 {
						want = engine.Claimed
					}
					wantVerdict(t, claim(t, e, ev), want)
				}
				if round > 0 {
					continue
				}
				for i := range 5 { // forgotten claims are not in the cache either
					if found, err := e.Admin().Forget(ctx, "billing", []byte(fmt.Sprint(i)), noon); !found || err != nil {
						t.Fatal(found, err)
					}
					wantVerdict(t, claim(t, e, event(fmt.Sprint(i))), engine.Claimed)
				}
			}
			s, err := e.Stats()
			if err != nil || (size < 0) != (s.CacheHits == 0) && size != 1 {
				t.Errorf("%d hits of a cache of %d, %v", s.CacheHits, size, err)
			}
		})
	}
}

func TestClaimsWaitingTogetherShareOneBatch(t *testing.T) {
	const n = 60
	e, m := openMem(t, engine.Options{})
	m.HoldSyncs()
	var wg sync.WaitGroup
	before := m.Calls(storetest.OpApply)
	for i := range n {
		wg.Go(func() { claim(t, e, event(fmt.Sprint(i))) })
	}
	awaitHeld(t, m)
	e.AwaitCallers(t, n)
	m.ReleaseSyncs()
	wg.Wait()
	if batches := m.Calls(storetest.OpApply) - before; batches > n/4 {
		t.Errorf("%d claims at once took %d batches", n, batches)
	}
}

func TestFilterFalsePositivesAreDecidedOnTheFullKey(t *testing.T) {
	const n = 3000
	e, _ := openMem(t, engine.Options{MaxFilterBytes: 64, ExpectedPerWeek: 1, RecentClaims: 100})
	for i := range n {
		wantVerdict(t, claim(t, e, event(fmt.Sprint("own", i))), engine.Claimed)
	}
	for i := range n {
		wantVerdict(t, claim(t, e, event(fmt.Sprint("own", i))), engine.Duplicate)
	}
	s, err := e.Stats()
	if err != nil || s.FilterFalsePositives < n/2 {
		t.Fatalf("the filter of %d bytes had only %d false positives: %v", s.FilterBytes, s.FilterFalsePositives, err)
	}
	if r, err := e.Admin().Verify(ctx); err != nil || r.Total != 0 || r.Claims != n {
		t.Fatalf("%+v, %v", r, err)
	}
}

// The bits of a claim are in the filter when its batch is handed to the store. So if a caller finds
// the claim in the store, the filter has not reported the event as new to it.
func TestFilterContainsAClaimBeforeTheStoreDoes(t *testing.T) {
	for _, broken := range []bool{false, true} { // the control: a filter that gets the bits later
		e, m := openMem(t, engine.Options{})
		claim(t, e, event("first")) // the names are known, the week has a filter
		asked := -1
		m.Before(storetest.OpApply, func(int) error {
			if broken {
				e.ForgetFilter(weekOf(t, noon))
			}
			before := m.Calls(storetest.OpClaim)
			err := e.Update(ctx, func(tx *engine.Tx) error {
				_, err := tx.TryClaim(event("a"))
				return errors.Join(err, errBoom)
			})
			if !errors.Is(err, errBoom) {
				t.Error(err)
			}
			asked = m.Calls(storetest.OpClaim) - before
			return nil
		})
		wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
		m.Before(storetest.OpApply, nil)
		if broken != (asked < 1) {
			t.Errorf("bits set later: %v; while the batch is being applied, the store is asked %d times about its claim", broken, asked)
		}
	}
}

func TestContextEndedBeforeClaimsNothing(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	over, cancel := context.WithCancel(ctx)
	cancel()
	before := m.Calls(storetest.OpApply)
	if r, err := e.TryClaim(over, event("a")); !errors.Is(err, context.Canceled) || r.Verdict != engine.Failed {
		t.Errorf("told %v, %v", r, err)
	}
	if rs, err := e.TryClaimBatch(over, []engine.Event{event("a")}); !errors.Is(err, context.Canceled) || len(rs) != 1 ||
		rs[0].Verdict != engine.Failed || !errors.Is(rs[0].Err, context.Canceled) {
		t.Errorf("told %v, %v", rs, err)
	}
	err := e.Update(over, func(tx *engine.Tx) error { t.Error("the closure runs"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if m.Calls(storetest.OpApply) != before {
		t.Error("something was written")
	}
	wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
}

// An application may test itself in more than one bubble of testing/synctest: nothing of one engine
// may reach another one.
func TestEnginesInBubblesShareNothing(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			e, _ := openMem(t, engine.Options{})
			wantVerdict(t, claim(t, e, event("a")), engine.Claimed)
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClosedEngineAnswersNothing(t *testing.T) {
	e, _ := openMem(t, engine.Options{})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	_, claimErr := e.TryClaim(ctx, event("a"))
	_, batchErr := e.TryClaimBatch(ctx, []engine.Event{event("a")})
	_, forgetErr := e.Admin().Forget(ctx, "billing", []byte("a"), noon)
	_, _, lookupErr := e.Admin().Lookup(ctx, "billing", []byte("a"), noon)
	updateErr := e.Update(ctx, func(*engine.Tx) error { t.Error("the closure runs"); return nil })
	for i, err := range []error{claimErr, batchErr, forgetErr, lookupErr, updateErr, e.Close()} {
		if !errors.Is(err, engine.ErrClosed) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// While one batch is being applied, the next one is decided: the store does not show the first
// one's claims yet.
func TestEventInABatchThatIsBeingAppliedIsClaimedOnce(t *testing.T) {
	e, m := openMem(t, engine.Options{})
	claim(t, e, event("warm")) // the batches of Open are applied
	begun, goOn := make(chan struct{}), make(chan struct{})
	m.Before(storetest.OpApply, func(int) error {
		m.Before(storetest.OpApply, nil)
		close(begun)
		<-goOn
		return nil
	})
	told := make(chan engine.Result, 2)
	go func() { told <- claim(t, e, event("a")) }()
	receive(t, begun)
	go func() { told <- claim(t, e, event("a")) }()
	e.AwaitTaken(t, 2) // the second one is decided, or waits to be
	close(goOn)
	a, b := receive(t, told), receive(t, told)
	if a.Verdict+b.Verdict != engine.Claimed+engine.Duplicate {
		t.Fatalf("told %v and %v", a.Verdict, b.Verdict)
	}
}
