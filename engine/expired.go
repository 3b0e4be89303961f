package engine

import (
	"cmp"
	"context"
	"fmt"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// DropExpired drops the weeks that are past retention by the clock and not held, oldest first. It
// drops at most Options.MaxWeeksPerRun weeks, counted from the first with claims. On return, their
// claims are durably removed, and their events are TooOld. The disk space is freed in the
// background (see Reclaimed). With KeepAll it does nothing.
//
// It does not drop the newest week before the current one in which the store has claims of any
// scope, nor a later week. So a clock that is ahead does not empty the store, and current events
// are not TooOld once the clock is right again. If every week has claims, this changes nothing. A
// store that gets no claims keeps that week, and an empty store keeps all weeks, until the store
// has claims of a later past week or DropAllExpired is called.
//
// ErrLimit means that scopes of Options.ScopeRetention keep their weeks, because too many other
// scopes have oldest weeks of their own (limits.ScopeRetentions); all else was done.
func (t *Retention) DropExpired(ctx context.Context) (DropReport, error) {
	return t.dropExpired(ctx, t.core.opt.MaxWeeksPerRun, false)
}

// DropAllExpired drops all weeks that are past retention by the clock and not held, without the
// bounds of DropExpired. It trusts the clock, so check the clock first.
func (t *Retention) DropAllExpired(ctx context.Context) (DropReport, error) {
	return t.dropExpired(ctx, int(weekbucket.Max), true)
}

func (t *Retention) dropExpired(ctx context.Context, most int, forced bool) (DropReport, error) {
	if t.keepsAll() {
		return DropReport{Oldest: t.finder.retained.oldestWeek()}, nil
	}
	var stored []storage.Bucket
	if !t.finder.filters.Trusted() { // the counts are incomplete
		var err error
		if stored, err = t.buckets(ctx, func(storage.Bucket) bool { return true }); err != nil {
			return DropReport{Oldest: t.finder.retained.oldestWeek()}, err
		}
	}
	x := expiry{most: most}
	unmarked := 0
	scopes := func() (until map[string]weekbucket.Week, heldBy string, err error) {
		until, unmarked, heldBy = t.expiredOfScopes(&x)
		return until, heldBy, nil
	}
	report, err := t.drop(ctx, scopes, func() (week weekbucket.Week, heldBy string, err error) {
		if x.this, err = weekbucket.Of(t.core.now()); err != nil {
			return 0, "", fmt.Errorf("hapax: the clock: %w", err)
		}
		x.hold, x.held = t.holds.lowest()
		x.weeks = t.claimWeeks(stored, x.this)
		if forced {
			x.weeks.last = weekbucket.Max
		}
		week, heldBy = x.until(t.finder.retained.decideOld, t.core.opt.RetentionWeeks, x.weeks.first)
		return week, heldBy, nil
	})
	report.Behind = x.behind
	if err == nil && unmarked > 0 {
		err = errTooManyFloors(limits.ScopeRetentions + unmarked)
	}
	return report, err
}

// keepsAll reports whether nothing expires.
func (t *Retention) keepsAll() bool {
	return t.core.opt.RetentionWeeks == KeepAll && len(t.core.opt.ScopeRetention) == 0
}

// An expiry decides which weeks one run drops. It runs in the committer.
type expiry struct {
	most   int             // maximum number of weeks to drop, counted from the first with claims
	this   weekbucket.Week // the clock's
	hold   Hold            // the lowest, if held
	held   bool
	weeks  claimWeeks
	behind int // DropReport.Behind
}

// until returns the new value of an oldest retained week, which may be the old one, and the name of
// the hold that keeps an expired week, "" if there is none. first is the first week with claims. It
// also raises behind to the number of weeks left to later runs.
func (x *expiry) until(oldest weekbucket.Week, retention int, first weekbucket.Week) (week weekbucket.Week, heldBy string) {
	retained := firstRetained(x.this, retention)
	from := max(oldest, min(first, retained)) // weeks without claims do not count
	week = max(oldest, min(retained, x.weeks.last, from+weekbucket.Week(min(x.most, int(weekbucket.Max-from)))))
	if x.held && x.hold.week() < week && week > oldest {
		return max(x.hold.week(), oldest), x.hold.Name
	}
	x.behind = max(x.behind, int(retained)-int(week))
	return week, ""
}

// DropWeek drops the oldest retained week with claims, expired or not, and the empty weeks before
// it; or the oldest retained week if it is empty. It returns ErrNotOldestWeek for any other week,
// ErrHeld for a held one, and ErrRebuilding while the filters are being rebuilt. A week with
// damaged claims can be dropped too, which removes the damage.
//
// A claim in it whose window (Event.Window) has not ended is also dropped. Its event is TooOld if
// it has a time; without a time it belongs to the current week and can be Claimed again.
func (t *Retention) DropWeek(ctx context.Context, week weekbucket.Week) (DropReport, error) {
	var stored []storage.Bucket
	damage := t.finder.filters.Damage()
	if damage != nil { // the counts are incomplete until the damage is dropped
		var err error
		if stored, err = t.buckets(ctx, func(storage.Bucket) bool { return true }); err != nil {
			return DropReport{Oldest: t.finder.retained.oldestWeek()}, err
		}
	}
	return t.drop(ctx, nil, func() (weekbucket.Week, string, error) {
		if !t.finder.filters.Trusted() && (damage == nil || damage != t.finder.filters.Damage()) {
			return 0, "", ErrRebuilding
		}
		first := t.claimWeeks(stored, weekbucket.Min).first
		some := first < weekbucket.Max
		if week == weekbucket.Max || week != t.finder.retained.decideOld && (!some || week != first) {
			return 0, "", fmt.Errorf("%w, not %s: weeks are retained from %s, the first with claims is %s", ErrNotOldestWeek, week, t.finder.retained.decideOld, first)
		}
		if hold, ok := t.holds.lowest(); ok && hold.week() <= week {
			return 0, "", fmt.Errorf("%w: hold %q keeps %s and later weeks", ErrHeld, hold.Name, hold.week())
		}
		return week + 1, "", nil
	})
}

// expiredOfScopes returns the new oldest weeks of the scopes in Options.ScopeRetention whose weeks
// have expired, and how many scopes must keep theirs because of limits.ScopeRetentions. Only the
// committer calls it.
func (t *Retention) expiredOfScopes(x *expiry) (until map[string]weekbucket.Week, unmarked int, heldBy string) {
	until = make(map[string]weekbucket.Week)
	room := limits.ScopeRetentions - len(t.finder.retained.floors.decided)
	for scope, weeks := range t.core.opt.ScopeRetention {
		oldest, first := t.finder.retained.decidedOldest(scope), weekbucket.Min
		if number, known := t.finder.names.Number(scope); known {
			first = x.weeks.firsts[number]
		}
		week, by := x.until(oldest, weeks, first)
		heldBy = cmp.Or(heldBy, by)
		if week <= oldest {
			continue
		}
		if _, marked := t.finder.retained.floors.decided[scope]; !marked {
			if room == 0 {
				unmarked++
				continue
			}
			room--
		}
		until[scope] = week
	}
	return until, unmarked, heldBy
}

// claimWeeks are the weeks with claims that matter to expiry. Without claims, first is
// weekbucket.Max and last weekbucket.Min.
type claimWeeks struct {
	first  weekbucket.Week
	firsts map[uint64]weekbucket.Week // by the number of the scope
	last   weekbucket.Week            // last one before the current week; an oldest week is not raised beyond it
}

// claimWeeks returns the claimWeeks of all counted claims and of the given buckets. Only the
// committer calls it.
func (t *Retention) claimWeeks(stored []storage.Bucket, this weekbucket.Week) claimWeeks {
	w := claimWeeks{first: weekbucket.Max, firsts: make(map[uint64]weekbucket.Week)}
	add := func(ref filters.Bucket) {
		w.first = min(w.first, ref.Week)
		if first, known := w.firsts[ref.Scope]; !known || ref.Week < first {
			w.firsts[ref.Scope] = ref.Week
		}
		if ref.Week < this {
			w.last = max(w.last, ref.Week)
		}
	}
	for ref := range t.finder.filters.Buckets() {
		add(ref)
	}
	for _, b := range stored {
		if number, known := t.finder.names.Number(b.Scope); known && b.Week >= t.finder.retained.decidedOldest(b.Scope) {
			add(filters.Bucket{Scope: number, Week: b.Week})
		}
	}
	return w
}
