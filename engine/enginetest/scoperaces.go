package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storetest"
)

const (
	dropRacers = 4
	dropIDs    = 60
)

// A raceCut is the state after a power failure, with the verdicts returned before it.
type raceCut struct {
	dir     string
	claimed [dropIDs]bool
	dropped bool
}

// raceWithDrop runs racers that claim events of a scope while it is dropped. Each event is claimed
// at most once, and none after the drop, even if the power fails meanwhile.
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

// claimRacing claims an event, in a transaction or not. A transaction whose week is dropped, or
// that conflicts, has no verdict.
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
		plan, err := e.Retention().PlanScopeDrop(ctx, scope)
		if err == nil && len(plan.Weeks) < weeks {
			continue
		}
		if err == nil {
			_, err = e.Retention().DropScope(ctx, plan)
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
			t.Errorf("after a power failure %d is %v, %v; it was claimed before %v, dropped before %v", i, res.Verdict, err, told, c.dropped)
		}
	}
	if r, err := e.Admin().Verify(context.Background()); err != nil || r.Total != 0 {
		t.Error(r, err)
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
			_, dropErr := e.Retention().DropExpired(context.Background())
			r, err := e.Admin().Verify(context.Background())
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
