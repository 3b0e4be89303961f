package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Caps on holds.
const (
	MaxHolds         = 1 << 16
	MaxHoldNameBytes = 255
)

// A Hold keeps the week of At and all later ones from being dropped.
type Hold struct {
	Name string
	At   time.Time
}

// SetHold places a hold, or moves the one of that name: no week at or after that of at is dropped
// until it is moved or released. It is durable on return. A hold on a week that is already gone
// does not bring it back; it keeps what is left.
func (e *Engine) SetHold(ctx context.Context, name string, at time.Time) error {
	return e.Update(ctx, func(tx *Tx) error { return tx.SetHold(name, at) })
}

// ReleaseHold removes a hold, durably on return. It is no error if there is none.
func (e *Engine) ReleaseHold(ctx context.Context, name string) error {
	return e.Update(ctx, func(tx *Tx) error { return tx.ReleaseHold(name) })
}

// Holds returns the holds in the order of their names.
func (e *Engine) Holds() []Hold { return e.holds.list() }

// OldestWeek returns the oldest week kept: events before it are TooOld.
func (e *Engine) OldestWeek() weekbucket.Week { return weekbucket.Week(e.oldest.Load()) }

// A DropReport says what was dropped.
type DropReport struct {
	// Oldest is the oldest week kept now.
	Oldest weekbucket.Week
	// Scopes has the oldest weeks kept of the scopes for which this call raised them
	// (Options.ScopeRetention).
	Scopes map[string]weekbucket.Week
	// Weeks is the number of weeks by which it was raised, Buckets the number of (scope, week) that
	// held claims.
	Weeks   int
	Buckets int
	// Behind is the number of expired weeks that are left to later runs by the bound on weeks (see
	// DropAllExpired).
	Behind int
	// HeldBy names the hold that kept an expired week from being dropped, "" if none did.
	HeldBy string
}

// DropExpired drops the weeks that are past retention by the clock and kept by no hold, oldest
// first, at most Options.MaxWeeksPerRun of them, counted from the first that holds claims. On
// return their claims are gone, durably, and events of these weeks are TooOld. The disk space comes
// back behind (see Reclaimed). With KeepAll it does nothing.
func (e *Engine) DropExpired(ctx context.Context) (DropReport, error) {
	return e.dropExpired(ctx, e.opt.MaxWeeksPerRun)
}

// DropAllExpired is DropExpired without the bound on the number of weeks. It trusts the clock: use
// it when you have looked at it.
func (e *Engine) DropAllExpired(ctx context.Context) (DropReport, error) {
	return e.dropExpired(ctx, int(weekbucket.Max))
}

func (e *Engine) dropExpired(ctx context.Context, most int) (DropReport, error) {
	if e.opt.RetentionWeeks == KeepAll && len(e.opt.ScopeRetention) == 0 {
		return DropReport{Oldest: e.OldestWeek()}, nil
	}
	behind := 0
	scopes := func() (map[string]weekbucket.Week, string, error) { return e.expiredOfScopes(most) }
	report, err := e.drop(ctx, scopes, func() (weekbucket.Week, string, error) {
		this, err := weekbucket.Of(e.now())
		if err != nil {
			return 0, "", fmt.Errorf("hapax: the clock: %w", err)
		}
		if e.opt.RetentionWeeks == KeepAll {
			return e.decideOld, "", nil
		}
		kept, from := firstKept(this, e.opt.RetentionWeeks), e.decideOld
		if first, some := e.screen.firstWeek(); some && e.screen.trusted.Load() {
			from = max(from, min(first, kept)) // weeks without claims do not count
		}
		until := min(kept, from+weekbucket.Week(min(most, int(weekbucket.Max-from))))
		behind = int(kept) - int(until)
		if hold, ok := e.holds.lowest(); ok && hold.week() < until {
			behind = 0
			return max(hold.week(), e.decideOld), hold.Name, nil
		}
		return until, "", nil
	})
	report.Behind = max(behind, 0)
	return report, err
}

// DropWeek drops the oldest kept week that holds claims, whether it is expired or not, and with it
// the empty weeks before it; or the oldest kept week, if it is empty. Any other week is
// ErrNotOldestWeek, a held one ErrHeld. While the filters are being rebuilt it is ErrRebuilding.
func (e *Engine) DropWeek(ctx context.Context, week weekbucket.Week) (DropReport, error) {
	return e.drop(ctx, nil, func() (weekbucket.Week, string, error) {
		if !e.screen.trusted.Load() {
			return 0, "", ErrRebuilding
		}
		first, some := e.screen.firstWeek()
		if week == weekbucket.Max || week != e.decideOld && (!some || week != first) {
			return 0, "", fmt.Errorf("%w: %s is not it (weeks are kept from %s, the first that holds claims is %s)", ErrNotOldestWeek, week, e.decideOld, first)
		}
		if hold, ok := e.holds.lowest(); ok && hold.week() <= week {
			return 0, "", fmt.Errorf("%w: hold %q keeps %s and later weeks", ErrHeld, hold.Name, hold.week())
		}
		return week + 1, "", nil
	})
}

// buckets returns the buckets that hold claims and that keep selects.
func (e *Engine) buckets(ctx context.Context, keep func(storage.Bucket) bool) ([]storage.Bucket, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	var list []storage.Bucket
	err := e.store.Buckets(func(b storage.Bucket) error {
		if keep(b) {
			list = append(list, b)
		}
		return ctx.Err()
	})
	if err != nil && ctx.Err() == nil {
		err = e.stop(err)
	}
	return list, err
}

// drop raises the oldest week kept to what until says, and those of single scopes to what scopes
// says, which may be nil, and removes the claims before them. Both run in the committer, so that no
// claim and no hold comes in between.
//
// The order is what makes it safe: the mark is durable before anything is removed, so that a crash
// in between leaves weeks that are TooOld and still there, and the removal is repeated at open.
// Every claim of such a week that was decided before the mark is applied before it.
func (e *Engine) drop(ctx context.Context, scopes oldestOfScopes, until func() (weekbucket.Week, string, error)) (DropReport, error) {
	e.drops.Lock()
	defer e.drops.Unlock()
	var report DropReport
	err := e.control(ctx, func(g *group) error {
		week, heldBy, err := until()
		if err != nil {
			return err
		}
		report.Oldest, report.HeldBy = max(week, e.decideOld), heldBy
		if scopes != nil {
			floors, heldBy, err := scopes()
			if err != nil {
				return err
			}
			report.HeldBy = cmp.Or(report.HeldBy, heldBy)
			if err := e.floors.raise(g, floors, e.names); err != nil {
				return err
			}
			report.Scopes = floors
		}
		if week <= e.decideOld {
			return nil
		}
		report.Weeks = int(week - e.decideOld)
		g.batch.State = append(g.batch.State, storage.StateWrite{Key: keyOldest, Value: week.AppendKey(nil)})
		e.decideOld = week
		g.after = append(g.after, func() { e.oldest.Store(uint32(week)) })
		return nil
	})
	if err != nil {
		return report, err
	}
	return report, e.removeUnkept(ctx, &report)
}

// removeUnkept removes the claims before the oldest weeks kept, which are durable, and frees names.
// The caller holds e.drops.
func (e *Engine) removeUnkept(ctx context.Context, report *DropReport) error {
	if report.Weeks > 0 || len(report.Scopes) > 0 {
		// Not before the mark is durable: until then the claims of these weeks are duplicates, not
		// new.
		err := e.control(context.WithoutCancel(ctx), func(*group) error {
			e.screen.dropBefore(e.decideOld, e.oldestByNumber())
			return nil
		})
		if err != nil {
			return err
		}
	}
	// Also if no week was dropped: an earlier call may have been cut off by its context between
	// mark and removal.
	buckets, err := e.removeDropped(ctx)
	report.Buckets = len(buckets)
	if err != nil {
		return err
	}
	return e.freeNames(ctx)
}

// maxFreed bounds the writes of one batch that frees names.
const maxFreed = 1 << 14

// freeNames frees the names that no kept week uses. The claims of all weeks before the oldest ones
// are gone. The caller holds e.drops.
func (e *Engine) freeNames(ctx context.Context) error {
	for more := true; more; {
		err := e.control(ctx, func(g *group) error {
			g.batch.State, more = e.names.release(e.OldestWeek(), g.batch.State, maxFreed)
			more = !e.floors.free(g, e.names, e.screen) || more
			e.floors.forget(g, e.OldestWeek())
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// removeDropped removes what is left of the weeks before the oldest kept one, and starts giving
// back its space. The caller holds e.drops.
func (e *Engine) removeDropped(ctx context.Context) ([]storage.Bucket, error) {
	buckets, err := e.buckets(ctx, func(b storage.Bucket) bool { return b.Week < e.oldestOf(b.Scope) })
	if err != nil || len(buckets) == 0 {
		return nil, err
	}
	owed, err := e.owedBuckets()
	if err != nil {
		return nil, err
	}
	noted := make(map[storage.Bucket]bool, len(owed)) // by a removal that was cut off
	for _, b := range owed {
		noted[b] = true
	}
	for _, b := range buckets {
		if !noted[b] {
			owed = append(owed, b)
		}
	}
	if err := e.noteOwed(ctx, owed); err != nil {
		return nil, err
	}
	if err := e.removeBuckets(buckets); err != nil {
		return nil, err
	}
	e.reclaimBehind(owed)
	return buckets, nil
}

func (e *Engine) removeBuckets(buckets []storage.Bucket) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	if err := e.store.Drop(buckets); err != nil {
		return e.stop(err)
	}
	return nil
}

// owedBuckets and noteOwed keep, durably, the list of dropped buckets whose space may not be back
// yet.
func (e *Engine) owedBuckets() ([]storage.Bucket, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	value, found, err := e.store.State(keyDrop)
	if err != nil {
		return nil, e.stop(err)
	}
	if !found {
		return nil, nil
	}
	buckets, err := parseBuckets(value)
	if err != nil {
		return nil, e.stop(err)
	}
	return buckets, nil
}

func (e *Engine) noteOwed(ctx context.Context, buckets []storage.Bucket) error {
	var value []byte
	if len(buckets) > 0 {
		value = encodeBuckets(buckets)
	}
	return e.control(ctx, func(g *group) error {
		g.batch.State = append(g.batch.State, storage.StateWrite{Key: keyDrop, Value: value})
		return nil
	})
}

// reclaimBehind gives the space of dropped buckets back in the background. A later drop takes over
// what an earlier one still owes.
func (e *Engine) reclaimBehind(owed []storage.Bucket) {
	if e.enter() != nil {
		return // the next open finds what is owed
	}
	defer e.leave()
	e.reclaim.begin()
	e.goBehind(func(ctx context.Context) {
		defer e.reclaim.end()
		e.reclaim.turn.Lock()
		defer e.reclaim.turn.Unlock()
		if err := e.store.Reclaim(ctx, owed); err != nil {
			if ctx.Err() == nil {
				_ = e.stop(err)
			}
			return
		}
		e.drops.Lock()
		defer e.drops.Unlock()
		now, err := e.owedBuckets()
		if err == nil && slices.Equal(now, owed) {
			_ = e.noteOwed(ctx, nil) // if it fails, the next open reclaims once more
		}
	})
}

// Reclaimed waits until no dropped week's space is being reclaimed any more, or ctx is done.
func (e *Engine) Reclaimed(ctx context.Context) error {
	select {
	case <-e.reclaim.idle():
		return e.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reclaim knows whether space is being given back.
type reclaim struct {
	turn sync.Mutex // held by the one that talks to the store

	mu   sync.Mutex // guards all below
	n    int
	done chan struct{} // closed when n falls to zero
}

func (r *reclaim) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == 0 {
		r.done = make(chan struct{})
	}
	r.n++
}

func (r *reclaim) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 {
		close(r.done)
	}
}

// idle returns a channel that is closed once nothing is being given back.
func (r *reclaim) idle() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		close(r.done)
	}
	return r.done
}

// DefaultNightly is the time of day, UTC, at which expired weeks are usually dropped.
const DefaultNightly = 3 * time.Hour

// RunNightly calls DropExpired each day at the given time of day, UTC, until ctx is done, and hands
// each outcome to report, if that is not nil. The application starts it in a goroutine of its own
// and stops it by ctx. Events that come late and weeks that are behind do not depend on it: a
// missed night is caught up with by the next one.
func (e *Engine) RunNightly(ctx context.Context, at time.Duration, report func(DropReport, error)) error {
	if at < 0 || at >= 24*time.Hour {
		return fmt.Errorf("hapax: nightly time %v: give a time of day from 0 to 24h", at)
	}
	for {
		next := weekbucket.NextDaily(e.now(), at)
		// The clock may jump, so look at it at least every hour.
		for now := e.now(); now.Before(next); now = e.now() {
			if err := pause(ctx, min(next.Sub(now), time.Hour)); err != nil {
				return err
			}
			if e.now().Add(25 * time.Hour).Before(next) { // it went back
				next = weekbucket.NextDaily(e.now(), at)
			}
		}
		r, err := e.DropExpired(ctx)
		if report != nil {
			report(r, err)
		}
		if errors.Is(err, ErrClosed) || errors.Is(err, ErrStopped) {
			return err
		}
	}
}

// firstKept is the oldest week kept when this is the current one.
func firstKept(this weekbucket.Week, retention int) weekbucket.Week {
	if retention == KeepAll || weekbucket.Week(retention) > this {
		return weekbucket.Min
	}
	return this - weekbucket.Week(retention)
}

// holds is what the store keeps under stateHold, in memory. It follows the batches as they are
// decided.
type holds struct {
	mu sync.RWMutex // guards at; no I/O under it
	at map[string]time.Time
}

func holdKey(name string) []byte { return append([]byte{stateHold}, name...) }

func (h Hold) week() weekbucket.Week {
	week, _ := weekbucket.Of(h.At) // checked when the hold was placed
	return week
}

func checkHold(name string, at time.Time) error {
	if strings.TrimSpace(name) == "" || len(name) > MaxHoldNameBytes {
		return &KeyError{"hold name", fmt.Sprintf("has %d bytes or is blank: give 1 to %d", len(name), MaxHoldNameBytes)}
	}
	if _, err := weekbucket.Of(at); err != nil || at.IsZero() {
		return &KeyError{"hold time", "is zero or outside the years 1 to 9999"}
	}
	return nil
}

// admit says whether the writes keep the number of holds within the cap.
func (h *holds) admit(tx *Tx) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	n := len(h.at)
	for _, i := range tx.writes.latest {
		key := tx.writes.list[i].name
		if key[0] != stateHold {
			continue
		}
		_, there := h.at[key[1:]]
		switch put := tx.writes.list[i].Value != nil; {
		case put && !there:
			n++
		case !put && there:
			n--
		}
	}
	if n > MaxHolds && n > len(h.at) {
		return fmt.Errorf("%w: %d holds", ErrLimit, MaxHolds)
	}
	return nil
}

// noteWrite takes a write that goes into a batch, if it is one of a hold.
func (h *holds) noteWrite(w storage.StateWrite) {
	if w.Key[0] != stateHold {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name := string(w.Key[1:])
	if w.Value == nil {
		delete(h.at, name)
		return
	}
	if at, err := parseHold(w.Value); err == nil {
		h.at[name] = at
	}
}

func (h *holds) list() []Hold {
	h.mu.RLock()
	defer h.mu.RUnlock()
	list := make([]Hold, 0, len(h.at))
	for _, name := range slices.Sorted(maps.Keys(h.at)) {
		list = append(list, Hold{name, h.at[name]})
	}
	return list
}

// among returns the holds with these names that are there, in the order of the names.
func (h *holds) among(names []string) (list []Hold) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, name := range names {
		if at, there := h.at[name]; there {
			list = append(list, Hold{name, at})
		}
	}
	return list
}

// named returns the holds with these names, in order and each once.
func (h *holds) named(names []string) ([]Hold, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	list := h.among(names)
	for i, name := range names {
		if i == len(list) || list[i].Name != name {
			return nil, &KeyError{"hold name", fmt.Sprintf("%q is that of no hold: see Engine.Holds", name)}
		}
	}
	return list, nil
}

func (h *holds) lowest() (lowest Hold, some bool) {
	for _, hold := range h.list() {
		if !some || hold.At.Before(lowest.At) {
			lowest, some = hold, true
		}
	}
	return lowest, some
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
