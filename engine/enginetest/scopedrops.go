package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/weekbucket"
)

// RunScopeDrops drops scopes of an engine on the store that h opens, by a plan (Retention.DropScope)
// and by their retention (Options.ScopeRetention): with a power failure before each call of the
// store that writes, and while others claim in these scopes.
func RunScopeDrops(t *testing.T, h storetest.Harness) {
	for _, d := range scopeDrops {
		t.Run(d.name, func(t *testing.T) { d.cutAtEachStep(t, h) })
		for what, lose := range d.losses {
			t.Run(d.name+", loses "+what, func(t *testing.T) { d.seesLoss(t, h, lose) })
		}
	}
	t.Run("claims race with the drop", func(t *testing.T) { raceWithDrop(t, h) })
	t.Run("drops concurrent with all other calls", func(t *testing.T) { dropBesideAll(t, h) })
}

// A scopeDrop is one way to drop weeks of the scope mail.
type scopeDrop struct {
	name      string
	retention map[string]int
	last      int // last dropped week, relative to that of dropNow
	names     int // number of freed names
	plan      bool
	losses    map[string]func(*storage.Batch) // parts of a batch that a store must not lose
}

// The keys are those of docs/format.md.
var scopeDrops = []scopeDrop{
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

const dropHold = "kafka/mail/orders/0"

// withoutState removes the writes of a key, or its removals, from a batch.
func withoutState(b *storage.Batch, key string, removal bool) {
	b.State = slices.DeleteFunc(slices.Clone(b.State), func(w storage.StateWrite) bool {
		return string(w.Key) == key && removal == (w.Value == nil)
	})
}

// cuts drops weeks, and returns the directories that power failures have left during the drop.
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
	s.lose = lose // no call is in progress
	s.setCut(func(before string) {
		n++
		for _, percent := range []int{0, 100} {
			clones[fmt.Sprintf("step %d, before %s, %d %% of what was not synced kept", n, before, percent)] = h.CrashClone(t, s.Store, dir, percent)
		}
	})
	if d.plan {
		if plan, err = e.Retention().PlanScopeDrop(ctx, "mail", dropHold); err == nil {
			_, err = e.Retention().DropScope(ctx, plan)
		}
	} else {
		_, err = e.Retention().DropExpired(ctx)
	}
	if err := errors.Join(err, e.Retention().Reclaimed(ctx)); err != nil {
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

// seesLoss is the control of cutAtEachStep: it checks that cutAtEachStep fails on a store that
// loses a part of the drop.
func (d *scopeDrop) seesLoss(t *testing.T, h storetest.Harness, lose func(*storage.Batch)) {
	clones, plan := d.cuts(t, h, lose)
	for _, dir := range clones {
		if _, err := d.checkCut(t, h, dir, plan); err != nil {
			return
		}
	}
	t.Errorf("none of %d power failures shows the loss", len(clones))
}

// checkCut opens the state after a power failure, in which the drop was decided completely or not
// at all. Then it finishes the drop without the retention, by the mark.
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

// finish completes a drop that was decided; a drop by a plan always.
func (d *scopeDrop) finish(e *engine.Engine, s storage.Store, plan engine.ScopeDropPlan, decided bool) (err error) {
	ctx := context.Background()
	if d.plan {
		err = rebuilt(func() error { _, err := e.Retention().DropScope(ctx, plan); return err })
	} else {
		_, err = e.Retention().DropExpired(ctx)
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
	// A new scope gets the number if it was freed.
	next, err := e.TryClaim(ctx, dropEvent("next", "next", "orders", 0))
	if err != nil {
		return err
	}
	if next.Verdict != engine.Claimed {
		return fmt.Errorf("in a new scope: %v", next.Verdict)
	}
	kept := len(dropEvents()) - (d.last-dropFirst+1)*dropEach/2 + 1
	r, err := e.Admin().Verify(ctx)
	if err != nil {
		return err
	}
	if r.Total != 0 || int(r.Claims) != kept {
		return fmt.Errorf("verify: %+v; want %d claims", r, kept)
	}
	return nil
}
