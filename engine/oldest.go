package engine

import (
	"bytes"
	"context"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// The oldest retained week is a durable mark. A new store sets it by the clock, and drops raise it.
// A second state key, keyStart, has the value that was last set without a drop: while both are
// equal, nothing was dropped, and the mark may be lowered. Until the first claim, each Open sets
// the mark by the clock again, which may have been wrong before.

// loadOldest reads the oldest retained week, or sets it by the clock.
func loadOldest(e *Engine) error {
	oldest, found, err := readOldest(e.core.store)
	if err != nil {
		return err
	}
	if !found && e.decider.seq > 0 {
		return fmt.Errorf("%w: it has %d batches and no oldest week", storage.ErrDamaged, e.decider.seq)
	}
	e.retained.decideOld = oldest
	if err := setOldest(e, !found); err != nil {
		return err
	}
	e.retained.oldest.Store(uint32(e.retained.decideOld))
	return nil
}

// readOldest reads the oldest retained week, which a store has that an engine has opened.
func readOldest(store storage.Reader) (week weekbucket.Week, found bool, err error) {
	value, found, err := store.State(keyOldest)
	if err != nil || !found {
		return 0, false, err
	}
	if week, err = weekbucket.FromKey(value); err != nil {
		return 0, false, fmt.Errorf("%w: oldest week: %w", storage.ErrDamaged, err)
	}
	return week, true, nil
}

// setOldest sets the oldest retained week by the clock if the store is new, or has never had a claim
// and has dropped nothing.
func setOldest(e *Engine, created bool) error {
	if !created {
		fresh, err := e.core.nothingDropped()
		if err != nil || !fresh || e.finder.names.Count() > 0 || len(e.retained.floors.decided) > 0 {
			return err
		}
	}
	this, err := weekbucket.Of(e.core.now())
	if err != nil {
		return fmt.Errorf("hapax: the clock: %w", err)
	}
	first := firstRetained(this, e.core.opt.RetentionWeeks)
	if hold, held := e.holds.lowest(); held && hold.week() < first {
		first = max(hold.week(), min(e.retained.decideOld, first))
	}
	if !created && first == e.retained.decideOld {
		return nil
	}
	wait, err := e.core.writes.Apply(&storage.Batch{Seq: e.decider.seq + 1, State: startWrites(first), Control: true})
	if err == nil {
		err = wait()
	}
	if err != nil {
		return err
	}
	e.decider.seq++
	e.retained.decideOld = first
	return nil
}

// nothingDropped reports whether no week of the store was ever dropped.
func (c *core) nothingDropped() (bool, error) {
	start, _, err := c.store.State(keyStart)
	if err != nil {
		return false, err
	}
	start = bytes.Clone(start)
	oldest, _, err := c.store.State(keyOldest)
	return bytes.Equal(start, oldest), err
}

// startWrites returns the writes that set the oldest retained week without a drop.
func startWrites(week weekbucket.Week) []storage.StateWrite {
	return []storage.StateWrite{{Key: keyOldest, Value: week.AppendKey(nil)}, {Key: keyStart, Value: week.AppendKey(nil)}}
}

// LowerOldestWeek lowers the oldest retained week, durably on return, so that events from that week
// on are judged and not TooOld. It is meant for a store that was created while the clock was ahead.
// It returns ErrDropped if a week of this store was ever dropped, because events of that week would
// be claimed again. A week that is not lower changes nothing. Until the first claim, Open sets the
// oldest week by the clock, and no call is necessary.
func (t *Retention) LowerOldestWeek(ctx context.Context, week weekbucket.Week) error {
	if err := t.beginDrop(ctx); err != nil {
		return err
	}
	defer t.endDrop()
	return t.queue.control(ctx, func(g *group) error {
		if week >= t.finder.retained.decideOld {
			return nil
		}
		fresh, err := t.core.nothingDropped()
		if err != nil {
			return t.core.stop(err)
		}
		if !fresh {
			return fmt.Errorf("%w: weeks before %s were dropped", ErrDropped, t.finder.retained.decideOld)
		}
		g.batch.State = append(g.batch.State, startWrites(week)...)
		t.finder.retained.decideOld = week
		g.after = append(g.after, func() { t.finder.retained.oldest.Store(uint32(week)) })
		return nil
	})
}
