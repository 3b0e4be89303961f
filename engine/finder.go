package engine

import (
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/names"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A finder finds claims: in the filters, the cache and the store.
type finder struct {
	core     *core
	retained *retained
	names    *names.Table
	filters  *filters.Set
	cache    *claimCache
}

// incomplete returns an error if the counts are incomplete.
func (f *finder) incomplete() error {
	damage := f.filters.Damage()
	switch {
	case f.filters.Trusted():
		return nil
	case damage != nil:
		return fmt.Errorf("%w, after the damage is dropped: %w", ErrRebuilding, damage)
	}
	return ErrRebuilding
}

// checkEvent returns the week of an event that arrives now, or an error if the event cannot be
// judged.
func checkEvent(o *Options, ev *Event, now time.Time) (weekbucket.Week, error) {
	week, err := ev.check(o.MaxIDBytes, now)
	if err == nil {
		err = ev.checkWindow(o.retentionOf(ev.Scope))
	}
	return week, err
}

// newCandidate checks an event and initializes c, which is zero, as its candidate. It returns false
// if the result is already final.
func (f *finder) newCandidate(r *claimSet, c *candidate, ev *Event, res *Result, now time.Time) bool {
	week, err := checkEvent(&f.core.opt, ev, now)
	if err != nil {
		*res = Result{Verdict: Failed, Err: err}
		return false
	}
	if ev.when(now).Sub(now) > f.core.opt.AllowedSkew {
		*res = Result{Verdict: TooNew}
		return false
	}
	if week < f.retained.oldestOf(ev.Scope) {
		*res = Result{Verdict: TooOld}
		return false
	}
	f.fillCandidate(c, r, ev, week, now)
	return true
}

// fillCandidate initializes c, which is zero, as the candidate of a checked event with that week.
func (f *finder) fillCandidate(c *candidate, r *claimSet, ev *Event, week weekbucket.Week, now time.Time) {
	c.scope, c.seen, c.sent, c.fingerprint = ev.Scope, now, ev.sent(), ev.Fingerprint
	c.place.week, c.place.keyAt = week, len(r.arena)
	r.arena = storage.Bucket{Scope: ev.Scope, Week: week}.AppendKey(r.arena, ev.ID)
	c.place.keyEnd = len(r.arena)
	c.place.hash = f.core.hash(r.key(&c.place))
}

// known looks a claim up in the filter, the cache and the store. It finds visible claims that may
// not be durable yet: before an answer that depends on it, call settleContext.
func (f *finder) known(r *claimSet, p *place) (ClaimRecord, bool, error) {
	key := r.key(p)
	if f.filters.CertainlyNew(p.week, p.hash) {
		return ClaimRecord{}, false, nil
	}
	if rec, ok := f.cache.get(p.hash, key); ok {
		f.core.counters.cacheHits.Add(1)
		return rec, true, nil
	}
	if !r.looked {
		r.looked, r.epoch = true, f.cache.epoch()
	}
	rec, found, err := f.readRetained(key, p.week)
	if err != nil || !found {
		return ClaimRecord{}, false, err
	}
	if !f.core.left.has(key) {
		r.found = append(r.found, foundClaim{p.keyAt, p.keyEnd, p.hash, rec})
	}
	return rec, true, nil
}

// read reads a claim from the store. Only the committer calls it, so that no name is freed
// meanwhile. An error of the store stops the engine, unless it is confined.
func (f *finder) read(key []byte) (ClaimRecord, bool, error) {
	return f.readRetained(key, weekbucket.Max)
}

// readRetained is read for all other goroutines. It does not find a claim whose week is dropped
// meanwhile: the numbers in its record may already belong to other names.
func (f *finder) readRetained(key []byte, week weekbucket.Week) (ClaimRecord, bool, error) {
	f.core.counters.storeReads.Add(1)
	b, found, err := f.core.store.Claim(key)
	if err != nil {
		return ClaimRecord{}, false, f.core.stop(err)
	}
	if !found {
		return ClaimRecord{}, false, nil
	}
	rec, err := f.parse(b)
	if week < f.retained.oldestWeek() {
		return ClaimRecord{}, false, nil
	}
	if err != nil {
		return ClaimRecord{}, false, f.core.stop(err)
	}
	return rec, true, nil
}

func (f *finder) parse(b []byte) (ClaimRecord, error) {
	rec, topic, err := parseRecord(b)
	if err != nil {
		return ClaimRecord{}, err
	}
	rec.Origin.Topic, err = f.names.Name(topic)
	return rec, err
}
