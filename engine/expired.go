package engine

import (
	"context"
	"fmt"

	"github.com/hapax-dev/hapax/weekbucket"
)

// DropExpired drops the weeks that are past retention by the clock and not held, oldest first, at
// most Options.MaxWeeksPerRun of them, counted from the first with claims. On return, their claims
// are durably removed, and events of these weeks are TooOld. The disk space is freed in the
// background (see Reclaimed). With KeepAll it does nothing.
func (t *retention) DropExpired(ctx context.Context) (DropReport, error) {
	return t.dropExpired(ctx, t.opt.MaxWeeksPerRun)
}

// DropAllExpired is DropExpired without the limit on the number of weeks. It trusts the clock:
// check the clock before you call it.
func (t *retention) DropAllExpired(ctx context.Context) (DropReport, error) {
	return t.dropExpired(ctx, int(weekbucket.Max))
}

func (t *retention) dropExpired(ctx context.Context, most int) (DropReport, error) {
	if t.opt.RetentionWeeks == KeepAll && len(t.opt.ScopeRetention) == 0 {
		return DropReport{Oldest: t.OldestWeek()}, nil
	}
	behind := 0
	scopes := func() (map[string]weekbucket.Week, string, error) { return t.expiredOfScopes(most) }
	report, err := t.drop(ctx, scopes, func() (weekbucket.Week, string, error) {
		this, err := weekbucket.Of(t.now())
		if err != nil {
			return 0, "", fmt.Errorf("hapax: the clock: %w", err)
		}
		if t.opt.RetentionWeeks == KeepAll {
			return t.decideOld, "", nil
		}
		kept, from := firstKept(this, t.opt.RetentionWeeks), t.decideOld
		if first, some := t.screen.firstWeek(); some && t.screen.trusted.Load() {
			from = max(from, min(first, kept)) // weeks without claims do not count
		}
		until := min(kept, from+weekbucket.Week(min(most, int(weekbucket.Max-from))))
		behind = int(kept) - int(until)
		if hold, ok := t.holds.lowest(); ok && hold.week() < until && until > t.decideOld {
			behind = 0
			return max(hold.week(), t.decideOld), hold.Name, nil
		}
		return until, "", nil
	})
	report.Behind = max(behind, 0)
	return report, err
}

// DropWeek drops the oldest retained week with claims, expired or not, and with it the empty weeks
// before it; or the oldest retained week, if it is empty. Any other week is ErrNotOldestWeek, a
// held one ErrHeld. While the filters are being rebuilt, it returns ErrRebuilding.
func (t *retention) DropWeek(ctx context.Context, week weekbucket.Week) (DropReport, error) {
	return t.drop(ctx, nil, func() (weekbucket.Week, string, error) {
		if !t.screen.trusted.Load() {
			return 0, "", ErrRebuilding
		}
		first, some := t.screen.firstWeek()
		if week == weekbucket.Max || week != t.decideOld && (!some || week != first) {
			return 0, "", fmt.Errorf("%w: %s is not it (weeks are kept from %s, the first that holds claims is %s)", ErrNotOldestWeek, week, t.decideOld, first)
		}
		if hold, ok := t.holds.lowest(); ok && hold.week() <= week {
			return 0, "", fmt.Errorf("%w: hold %q keeps %s and later weeks", ErrHeld, hold.Name, hold.week())
		}
		return week + 1, "", nil
	})
}

// expiredOfScopes returns the oldest weeks to be retained of the scopes with a retention of their
// own, at most the given number of weeks after the first with claims of the scope, and none that a
// hold keeps. Only the committer calls it.
func (t *retention) expiredOfScopes(most int) (until map[string]weekbucket.Week, heldBy string, err error) {
	this, err := weekbucket.Of(t.now())
	if err != nil {
		return nil, "", fmt.Errorf("hapax: the clock: %w", err)
	}
	hold, held := t.holds.lowest()
	firsts := t.screen.firstWeeks()
	until = make(map[string]weekbucket.Week)
	for scope, weeks := range t.opt.ScopeRetention {
		oldest := t.decidedOldest(scope)
		kept, from := firstKept(this, weeks), oldest
		if number, known := t.names.number(scope); known && t.screen.trusted.Load() {
			if first, some := firsts[number]; some {
				from = max(from, min(first, kept))
			}
		}
		week := min(kept, from+weekbucket.Week(min(most, int(weekbucket.Max-from))))
		if held && hold.week() < week && week > oldest {
			week, heldBy = hold.week(), hold.Name
		}
		if week > oldest {
			until[scope] = week
		}
	}
	return until, heldBy, nil
}
