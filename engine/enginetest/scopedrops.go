package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// RunScopeDrops drops scopes of an engine on the store that h opens, by a plan (Engine.DropScope)
// and by their retention (Options.ScopeRetention): with a power cut before each call of the store
// that writes, and while others claim in these scopes.
func RunScopeDrops(t *testing.T, h storetest.Harness) {
	for _, d := range scopeDrops {
		t.Run(d.name, func(t *testing.T) { d.cutAtEachStep(t, h) })
		for what, lose := range d.losses {
			t.Run(d.name+", loses "+what, func(t *testing.T) { d.seesLoss(t, h, lose) })
		}
	}
	t.Run("claims race with the drop", func(t *testing.T) { raceWithDrop(t, h) })
	t.Run("drops beside everything else", func(t *testing.T) { dropBesideAll(t, h) })
}

// A scopeDrop is a way in which weeks of the scope mail are dropped.
type scopeDrop struct {
	name      string
	retention map[string]int
	last      int // the last week that is dropped, counted from that of dropNow
	names     int // how many names come back
	plan      bool
	losses    map[string]func(*storage.Batch) // what a store may not lose of a batch
}

var (
	dropNow = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

	// The keys are those of docs/format.md.
	scopeDrops = []scopeDrop{
		{
			name: "by a plan", last: 0, names: 1, plan: true,
			losses: map[string]func(*storage.Batch){
				"the mark":                func(b *storage.Batch) { withoutState(b, "fmail", false) },
				"the release of the hold": func(b *storage.Batch) { withoutState(b, "d"+dropHold, true) },
				"the journal": func(b *storage.Batch) {
					if slices.ContainsFunc(b.State, func(w storage.StateWrite) bool { return string(w.Key) == "nmail" && w.Value == nil }) {
						b.Journal = nil
					}
				},
			},
		},
		{
			name: "by its retention", retention: map[string]int{"mail": 2}, last: -3,
			losses: map[string]func(*storage.Batch){"the mark": func(b *storage.Batch) { withoutState(b, "fmail", false) }},
		},
	}
)

const (
	dropHold  = "kafka/mail/orders/0"
	dropFirst = -4 // the first week with claims
	dropEach  = 10 // claims of a week, in two scopes
)

// withoutState takes the writes of a key, or its removals, out of a batch.
func withoutState(b *storage.Batch, key string, removal bool) {
	b.State = slices.DeleteFunc(slices.Clone(b.State), func(w storage.StateWrite) bool {
		return string(w.Key) == key && removal == (w.Value == nil)
	})
}

func dropEvent(id, scope, topic string, week int) engine.Event {
	return engine.Event{Scope: scope, ID: []byte(id), Time: dropNow.AddDate(0, 0, 7*week), Origin: engine.Origin{Topic: topic}}
}

func dropEvents() (events []engine.Event) {
	for week := dropFirst; week <= 0; week++ {
		for i := range dropEach {
			events = append(events, dropEvent(fmt.Sprint(week, " ", i), []string{"billing", "mail"}[i%2], "orders", week))
		}
	}
	return events
}

func dropOptions(retention map[string]int) engine.Options {
	return engine.Options{
		RetentionWeeks: 4, ScopeRetention: retention, MaxWeeksPerRun: 9, ExpectedPerWeek: 100,
		Clock: func() time.Time { return dropNow },
	}
}

// wantVerdicts judges all events and says what is not as it must be.
func wantVerdicts(e *engine.Engine, events []engine.Event, want func(*engine.Event) engine.Verdict) error {
	results, err := e.TryClaimBatch(context.Background(), events)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Err != nil {
			return fmt.Errorf("%q of %s: %w", events[i].ID, events[i].Scope, r.Err)
		}
		if w := want(&events[i]); r.Verdict != w {
			return fmt.Errorf("%q of %s in week %v: %v, want %v", events[i].ID, events[i].Scope, events[i].Time, r.Verdict, w)
		}
	}
	return nil
}

// A cutStore copies what a power cut would leave, before each call that writes. Such calls run one
// at a time, so that no other one is under way.
type cutStore struct {
	storage.Store
	lose func(*storage.Batch) // what the store loses of each batch

	mu  sync.Mutex // held by calls that write; guards cut
	cut func(before string)
}

func (s *cutStore) before(call string) (end func()) {
	s.mu.Lock()
	if s.cut != nil {
		s.cut(call)
	}
	return s.mu.Unlock
}

func (s *cutStore) setCut(cut func(before string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}

func (s *cutStore) Apply(b *storage.Batch) (func() error, error) {
	defer s.before("Apply")()
	if s.lose != nil {
		c := *b
		s.lose(&c)
		b = &c
	}
	wait, err := s.Store.Apply(b)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer s.before("wait")()
		return wait()
	}, nil
}

func (s *cutStore) TrimJournal(below uint64) error {
	defer s.before("TrimJournal")()
	return s.Store.TrimJournal(below)
}

func (s *cutStore) Drop(buckets []storage.Bucket) error {
	defer s.before("Drop")()
	return s.Store.Drop(buckets)
}

func (s *cutStore) Reclaim(ctx context.Context, buckets []storage.Bucket) error {
	defer s.before("Reclaim")()
	return s.Store.Reclaim(ctx, buckets)
}

func (s *cutStore) WriteSidecar(name string, write func(io.Writer) error) error {
	defer s.before("WriteSidecar")()
	return s.Store.WriteSidecar(name, write)
}

// openCut opens a new store and an engine on it, which is closed when the test ends.
func openCut(t *testing.T, h storetest.Harness, o engine.Options) (*engine.Engine, *cutStore, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	inner, err := h.Open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &cutStore{Store: inner}
	e, err := engine.Open(s, o)
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error("closing:", err)
		}
	})
	return e, s, dir
}

// cuts drops, and returns the directories that power cuts have left meanwhile.
func (d *scopeDrop) cuts(t *testing.T, h storetest.Harness, lose func(*storage.Batch)) (clones map[string]string, plan engine.ScopeDropPlan) {
	t.Helper()
	if h.CrashClone == nil {
		t.Skip("the harness has no CrashClone")
	}
	ctx := context.Background()
	e, s, dir := openCut(t, h, dropOptions(d.retention))
	err := wantVerdicts(e, dropEvents(), func(*engine.Event) engine.Verdict { return engine.Claimed })
	if d.plan {
		err = errors.Join(err, e.SetHold(ctx, dropHold, dropNow))
	}
	if err != nil {
		t.Fatal(err)
	}
	clones, n := map[string]string{}, 0
	s.lose = lose // no call is under way
	s.setCut(func(before string) {
		n++
		for _, percent := range []int{0, 100} {
			clones[fmt.Sprintf("step %d, before %s, %d %% of what was not synced kept", n, before, percent)] = h.CrashClone(t, s.Store, dir, percent)
		}
	})
	if d.plan {
		if plan, err = e.PlanScopeDrop(ctx, "mail", dropHold); err == nil {
			_, err = e.DropScope(ctx, plan)
		}
	} else {
		_, err = e.DropExpired(ctx)
	}
	if err := errors.Join(err, e.Reclaimed(ctx)); err != nil {
		t.Fatal(err)
	}
	s.before("the end")()
	s.setCut(nil)
	return clones, plan
}

func (d *scopeDrop) cutAtEachStep(t *testing.T, h storetest.Harness) {
	clones, plan := d.cuts(t, h, nil)
	n := map[bool]int{}
	for when, dir := range clones {
		decided, err := d.checkCut(t, h, dir, plan)
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
		n[decided]++
	}
	if n[true] < 4 || n[false] < 1 {
		t.Error("the drop has only", n, "steps")
	}
}

// seesLoss is the control of cutAtEachStep: on a store that loses a part of the drop it fails.
func (d *scopeDrop) seesLoss(t *testing.T, h storetest.Harness, lose func(*storage.Batch)) {
	clones, plan := d.cuts(t, h, lose)
	for _, dir := range clones {
		if _, err := d.checkCut(t, h, dir, plan); err != nil {
			return
		}
	}
	t.Errorf("none of %d power cuts shows the loss", len(clones))
}

// checkCut opens what a power cut has left: all of the drop was decided, or nothing. Then the drop
// is finished, without the retention: the mark decides.
func (d *scopeDrop) checkCut(t *testing.T, h storetest.Harness, dir string, plan engine.ScopeDropPlan) (decided bool, err error) {
	s, err := h.Open(t, dir)
	if err != nil {
		return false, err
	}
	e, err := engine.Open(s, dropOptions(nil))
	if err != nil {
		return false, errors.Join(err, s.Close())
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	events := dropEvents()
	first, err := e.TryClaim(context.Background(), events[1])
	if err != nil {
		return false, err
	}
	decided = first.Verdict == engine.TooOld
	if held := len(e.Holds()) == 1; d.plan && held == decided {
		return decided, fmt.Errorf("half a drop: it is decided %v, its hold is there %v", decided, held)
	}
	gone := dropNow.AddDate(0, 0, 7*d.last)
	done := decided
	want := func(ev *engine.Event) engine.Verdict {
		if done && ev.Scope == "mail" && !ev.Time.After(gone) {
			return engine.TooOld
		}
		return engine.Duplicate
	}
	if err := wantVerdicts(e, events, want); err != nil {
		return decided, err
	}
	if err := d.finish(e, s, plan, decided); err != nil {
		return decided, err
	}
	done = decided || d.plan
	return decided, wantVerdicts(e, events, want)
}

// finish finishes a drop that was decided, and one by a plan in any case.
func (d *scopeDrop) finish(e *engine.Engine, s storage.Store, plan engine.ScopeDropPlan, decided bool) (err error) {
	ctx := context.Background()
	if d.plan {
		err = rebuilt(func() error { _, err := e.DropScope(ctx, plan); return err })
	} else {
		_, err = e.DropExpired(ctx)
	}
	if err != nil || !decided && !d.plan {
		return err
	}
	last, err := weekbucket.Of(dropNow.AddDate(0, 0, 7*d.last))
	if err != nil {
		return err
	}
	err = s.Buckets(func(b storage.Bucket) error {
		if b.Scope == "mail" && b.Week <= last {
			return fmt.Errorf("%v is still there", b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	stats, err := e.Stats()
	if err != nil {
		return err
	}
	if stats.Names != 3-d.names {
		return fmt.Errorf("%d names, want %d", stats.Names, 3-d.names)
	}
	// A new scope gets the number that may have come back.
	next, err := e.TryClaim(ctx, dropEvent("next", "next", "orders", 0))
	if err != nil {
		return err
	}
	if next.Verdict != engine.Claimed {
		return fmt.Errorf("in a new scope: %v", next.Verdict)
	}
	kept := len(dropEvents()) - (d.last-dropFirst+1)*dropEach/2 + 1
	r, err := e.Verify(ctx)
	if err != nil {
		return err
	}
	if r.Total != 0 || int(r.Claims) != kept {
		return fmt.Errorf("verify: %+v; want %d claims", r, kept)
	}
	return nil
}

const (
	dropRacers = 4
	dropIDs    = 60
)

// A raceCut is what a power cut has left, and what callers had been told before.
type raceCut struct {
	dir     string
	claimed [dropIDs]bool
	dropped bool
}

// raceWithDrop has racers claim events of a scope that is dropped: each is claimed once at most,
// and none after the drop, also after power cuts meanwhile.
func raceWithDrop(t *testing.T, h storetest.Harness) {
	e, s, dir := openCut(t, h, dropOptions(nil))
	var claimed [dropIDs]atomic.Int32
	var dropped atomic.Bool
	var cuts []raceCut
	if h.CrashClone != nil {
		calls := 0
		s.setCut(func(string) {
			if calls++; calls%7 != 0 || len(cuts) == 10 {
				return
			}
			c := raceCut{dropped: dropped.Load()}
			for i := range claimed {
				c.claimed[i] = claimed[i].Load() > 0
			}
			c.dir = h.CrashClone(t, s.Store, dir, 50*(calls%3))
			cuts = append(cuts, c)
		})
	}
	var wg sync.WaitGroup
	for racer := range dropRacers {
		wg.Go(func() {
			for i := range dropIDs {
				after := dropped.Load()
				verdict, err := claimRacing(e, racer%2 == 0, i)
				switch {
				case err != nil:
					t.Error(err)
				case verdict == engine.Claimed:
					claimed[i].Add(1)
					if after {
						t.Errorf("%d is claimed after the drop", i)
					}
				case after && verdict != engine.TooOld:
					t.Errorf("%d is %v after the drop", i, verdict)
				}
			}
		})
	}
	wg.Go(func() {
		if err := dropWhole(e, "mail", 1); err != nil {
			t.Error(err)
		}
		dropped.Store(true)
	})
	wg.Wait()
	s.setCut(nil)
	for i := range claimed {
		if n := claimed[i].Load(); n > 1 {
			t.Errorf("%d was claimed %d times", i, n)
		}
	}
	wantVerified(t, e, 0)
	for _, c := range cuts {
		c.check(t, h)
	}
}

// claimRacing claims by itself or in a transaction. A transaction whose week is dropped, or that
// loses to another one, has no verdict.
func claimRacing(e *engine.Engine, own bool, i int) (engine.Verdict, error) {
	ctx, ev := context.Background(), dropEvent(fmt.Sprint(i), "mail", "orders", 0)
	if own {
		res, err := e.TryClaim(ctx, ev)
		return res.Verdict, err
	}
	var res engine.Result
	err := e.Update(ctx, func(tx *engine.Tx) (err error) {
		res, err = tx.TryClaim(ev)
		return err
	})
	if errors.Is(err, engine.ErrWeekDropped) {
		return engine.TooOld, nil
	}
	if errors.Is(err, engine.ErrConflict) {
		return claimRacing(e, own, i)
	}
	return res.Verdict, err
}

// dropWhole drops a scope as soon as it has claims in the given number of weeks.
func dropWhole(e *engine.Engine, scope string, weeks int) error {
	ctx := context.Background()
	for {
		plan, err := e.PlanScopeDrop(ctx, scope)
		if err == nil && len(plan.Weeks) < weeks {
			continue
		}
		if err == nil {
			_, err = e.DropScope(ctx, plan)
		}
		if !errors.Is(err, engine.ErrPlanOutdated) {
			return err
		}
	}
}

func (c *raceCut) check(t *testing.T, h storetest.Harness) {
	t.Helper()
	s, err := h.Open(t, c.dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(s, dropOptions(nil))
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, told := range c.claimed {
		res, err := e.TryClaim(context.Background(), dropEvent(fmt.Sprint(i), "mail", "orders", 0))
		if err != nil || told && res.Verdict == engine.Claimed || c.dropped && res.Verdict != engine.TooOld {
			t.Errorf("after a power cut %d is %v, %v; it was claimed before %v, dropped before %v", i, res.Verdict, err, told, c.dropped)
		}
	}
	if r, err := e.Verify(context.Background()); err != nil || r.Total != 0 {
		t.Error(r, err)
	}
}

func wantVerified(t *testing.T, e *engine.Engine, claims uint64) {
	t.Helper()
	if r, err := e.Verify(context.Background()); err != nil || r.Total != 0 || r.Claims != claims {
		t.Errorf("verify: %+v, %v; want %d claims", r, err, claims)
	}
}

// dropBesideAll drops scopes by plans, while others claim in them, and weeks are dropped by
// retention, listed and verified.
func dropBesideAll(t *testing.T, h storetest.Harness) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	e, s, dir := openCut(t, h, dropOptions(map[string]int{"pod-1": 1}))
	var claims, behind sync.WaitGroup
	for n := range 3 {
		claims.Go(func() {
			for i := range 100 {
				ev := dropEvent(fmt.Sprint(n, " ", i), fmt.Sprint("pod-", i%4), fmt.Sprint("topic-", i%3), -i%4)
				if _, err := e.TryClaim(context.Background(), ev); err != nil {
					t.Error(err)
				}
			}
		})
	}
	behind.Go(func() {
		for ctx.Err() == nil {
			_, dropErr := e.DropExpired(context.Background())
			r, err := e.Verify(context.Background())
			_, weeksErr := e.Weeks(context.Background())
			if err := errors.Join(dropErr, err, weeksErr); err != nil || r.Total != 0 {
				t.Error(r, err)
				return
			}
		}
	})
	for pod := range 4 {
		if err := dropWhole(e, fmt.Sprint("pod-", pod), 0); err != nil {
			t.Error(err)
		}
	}
	claims.Wait()
	end()
	behind.Wait()
	weeks, err := e.Weeks(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	kept := uint64(0)
	for _, w := range weeks {
		kept += w.Claims
	}
	wantVerified(t, e, kept)
	if h.CrashClone == nil {
		return
	}
	unlock := s.before("the end")
	clone := h.CrashClone(t, s.Store, dir, 0)
	unlock()
	inner, err := h.Open(t, clone)
	if err != nil {
		t.Fatal(err)
	}
	crashed, err := engine.Open(inner, dropOptions(nil))
	if err != nil {
		t.Fatal(errors.Join(err, inner.Close()))
	}
	wantVerified(t, crashed, kept)
	if err := crashed.Close(); err != nil {
		t.Error(err)
	}
}
