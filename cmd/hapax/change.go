package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/weekbucket"
)

type forgetCmd struct {
	eventID `embed:""`
	Time    time.Time `help:"Time of the event, such as 2026-03-04T12:00:00Z." xor:"when"`
	Week    week      `help:"Week of the event: the date of its Monday." xor:"when" placeholder:"DATE"`
}

type forgetRow struct {
	ID        id     `json:"id"`
	Week      string `json:"week"`
	Forgotten bool   `json:"forgotten"`
}

// Run implements the command.
func (c *forgetCmd) Run(ctx context.Context, out *output, f *files) error {
	id, err := c.bytes()
	if err != nil {
		return err
	}
	at := c.Time
	if c.Week.Week != 0 {
		at = c.Week.Start()
	}
	if at.IsZero() {
		return usageError("give the --time or the --week of the event: hapax lookup names the weeks that have a claim")
	}
	week, err := weekbucket.Of(at)
	if err != nil {
		return usageError(err.Error())
	}
	row, found := forgetRow{ID: id, Week: week.String()}, false
	if !f.yes {
		err = f.read(func(r *engine.Reader) (err error) {
			_, found, err = r.Lookup(ctx, c.Scope, id, at)
			return err
		})
	} else {
		err = f.change(func(e *engine.Engine) (err error) {
			found, err = e.Admin().Forget(ctx, c.Scope, id, at)
			return err
		})
		row.Forgotten = found
	}
	if err != nil {
		return err
	}
	out.object(row)
	switch {
	case !found:
		return notWanted("there is no such claim")
	case !f.yes:
		return errUnchanged
	}
	return nil
}

// A dropRow says what a drop removes, and whether it did.
type dropRow struct {
	Dropped bool     `json:"dropped"`
	Weeks   []string `json:"weeks"`
	Scopes  []string `json:"scopes"`
	Holds   []string `json:"holds"`
	Offsets int      `json:"offsets"`
	Oldest  string   `json:"oldest"`
}

func (f *files) reportDrop(out *output, row dropRow) error {
	for _, list := range []*[]string{&row.Weeks, &row.Scopes, &row.Holds} {
		if *list == nil {
			*list = []string{}
		}
	}
	out.object(row)
	if !row.Dropped {
		return errUnchanged
	}
	return nil
}

type dropWeekCmd struct {
	Week week `arg:"" help:"The week: the date of its Monday. It must be the oldest retained week, or the oldest one with claims."`
}

// Run implements the command.
func (c *dropWeekCmd) Run(ctx context.Context, out *output, f *files) error {
	row := dropRow{Weeks: []string{c.Week.String()}}
	err := f.read(func(r *engine.Reader) error {
		scopes, err := r.Scopes(ctx)
		for _, s := range scopes {
			if slices.Contains(s.Weeks, c.Week.Week) {
				row.Scopes = append(row.Scopes, s.Scope)
			}
		}
		row.Oldest = weekText(r.OldestWeek())
		if errors.As(err, new(*storage.DamageError)) { // a drop removes it
			err = nil
		}
		return err
	})
	if err == nil && f.yes {
		err = f.change(func(e *engine.Engine) error {
			report, err := rebuilt(ctx, func() (engine.DropReport, error) { return e.Retention().DropWeek(ctx, c.Week.Week) })
			if err != nil {
				return err
			}
			row.Dropped, row.Oldest = true, report.Oldest.String()
			return e.Retention().Reclaimed(ctx)
		})
	}
	if err != nil && !row.Dropped {
		return err
	}
	return errors.Join(f.reportDrop(out, row), err)
}

type dropScopeCmd struct {
	Scope string   `arg:"" help:"The scope. No consumer may use it."`
	Hold  []string `help:"Also release the hold with this name. Repeatable."`
}

// Run implements the command.
func (c *dropScopeCmd) Run(ctx context.Context, out *output, f *files) error {
	row := dropRow{Scopes: []string{c.Scope}, Holds: c.Hold}
	err := f.read(func(r *engine.Reader) error {
		scopes, err := r.Scopes(ctx)
		for _, s := range scopes {
			if s.Scope == c.Scope {
				row.Weeks, row.Oldest = weekTexts(s.Weeks), s.Oldest.String()
			}
		}
		return err
	})
	if err == nil && f.yes {
		err = f.change(func(e *engine.Engine) error {
			plan, err := rebuilt(ctx, func() (engine.ScopeDropPlan, error) { return e.Retention().PlanScopeDrop(ctx, c.Scope, c.Hold...) })
			if err != nil {
				return err
			}
			if _, err := e.Retention().DropScope(ctx, plan); err != nil {
				return err
			}
			row.Dropped, row.Oldest = true, weekText(plan.Oldest)
			return e.Retention().Reclaimed(ctx)
		})
	}
	if err != nil && !row.Dropped {
		return err
	}
	return errors.Join(f.reportDrop(out, row), err)
}

type dropGroupCmd struct {
	Group string `arg:"" help:"The consumer group. No consumer of it may run."`
}

// Run implements the command.
func (c *dropGroupCmd) Run(ctx context.Context, out *output, f *files) error {
	var row dropRow
	err := f.read(func(r *engine.Reader) error {
		offsets, err := r.Offsets(ctx, c.Group)
		row.Offsets, row.Oldest = len(offsets), weekText(r.OldestWeek())
		return err
	})
	if err == nil && f.yes {
		err = f.change(func(e *engine.Engine) error {
			plan, err := kafkaadapter.PlanGroupDrop(ctx, e, c.Group)
			if err == nil {
				err = kafkaadapter.DropGroup(ctx, e, plan)
			}
			row.Dropped, row.Holds, row.Scopes = err == nil, plan.Holds, plan.Scopes
			return err
		})
	}
	if err != nil {
		return err
	}
	return f.reportDrop(out, row)
}

type backupCmd struct {
	Dir string `arg:"" help:"Directory for the copy, which must not exist." type:"path"`
}

type backupRow struct {
	Backup      string `json:"backup"`
	Incarnation uint64 `json:"incarnation"`
}

// Run implements the command.
func (c *backupCmd) Run(ctx context.Context, out *output, f *files) error {
	store, err := f.open()
	if err != nil {
		return err
	}
	if err := errors.Join(store.Backup(ctx, c.Dir), store.Close()); err != nil {
		return err
	}
	copied := files{dir: c.Dir}
	return copied.read(func(r *engine.Reader) error {
		out.object(backupRow{c.Dir, r.Identity().Incarnation})
		return nil
	})
}
