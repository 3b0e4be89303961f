package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// Admin has the methods for operators, see Engine.Admin.
type Admin struct {
	core    *core
	finder  *finder
	queue   *queue
	decider *decider
	scanner *scanner
}

// Lookup returns the claim on an event if it is durable and in a retained week.
func (a *Admin) Lookup(ctx context.Context, scope string, id []byte, at time.Time) (rec ClaimRecord, found bool, err error) {
	if err := ctx.Err(); err != nil {
		return ClaimRecord{}, false, err
	}
	scope = a.core.opt.scope(scope)
	key, week, err := a.lookupKey(scope, id, at)
	if err != nil {
		return ClaimRecord{}, false, err
	}
	if err := a.core.enter(); err != nil {
		return ClaimRecord{}, false, err
	}
	defer a.core.leave()
	if week < a.finder.retained.oldestOf(scope) {
		return ClaimRecord{}, false, nil
	}
	rec, found, err = a.finder.readRetained(key, week)
	if err == nil {
		err = a.core.settleContext(ctx)
	}
	return rec, found && err == nil, err
}

// Forget removes the claim on one event, durably on return, so that its next delivery is Claimed.
// It reports whether there was one. A claim that an open transaction holds is ErrConflict.
func (a *Admin) Forget(ctx context.Context, scope string, id []byte, at time.Time) (found bool, err error) {
	scope = a.core.opt.scope(scope)
	key, week, err := a.lookupKey(scope, id, at)
	if err != nil {
		return false, err
	}
	hash := a.core.hash(key)
	err = a.queue.control(ctx, func(g *group) error {
		if a.decider.isReserved(key) {
			return ErrConflict
		}
		if week < a.finder.retained.decidedOldest(scope) {
			return nil
		}
		var rec ClaimRecord
		if rec, found, err = a.finder.read(key); err != nil || !found {
			return err
		}
		ref := filters.Bucket{Week: week}
		if ref.Scope, g.batch.State, err = a.finder.names.ScopeRef(scope, week, g.batch.State); err != nil {
			return err
		}
		g.after = a.core.left.decide(key, hash, a.finder.cache, g.after)
		g.batch.Claims = append(g.batch.Claims, a.decider.put.remove(key, hash))
		g.after = append(g.after, func() { a.finder.cache.forget(hash) })
		a.finder.filters.Remove(&g.journal, ref, hash)
		if rec.State != Done {
			a.decider.history.Add(a.decider.seq+1, occ.Write{Key: claimRead(key)})
		}
		return nil
	})
	return found && err == nil, err
}

// lookupKey returns the key of a claim.
func (a *Admin) lookupKey(scope string, id []byte, at time.Time) ([]byte, weekbucket.Week, error) {
	ev := Event{Scope: scope, ID: id, Time: at, Origin: Origin{Topic: "-"}}
	week, err := ev.check(limits.IDBytes, at)
	if err != nil {
		return nil, 0, err
	}
	return storage.Bucket{Scope: scope, Week: week}.AppendKey(nil, id), week, nil
}

func (a *Admin) weeks(ctx context.Context) ([]WeekInfo, error) {
	counts, err := a.currentCounts(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.core.enter(); err != nil {
		return nil, err
	}
	defer a.core.leave()
	weeks := make(map[weekbucket.Week]*WeekInfo)
	for b, claims := range counts {
		bytes, err := a.core.store.BucketBytes(b)
		if err != nil {
			return nil, a.core.stop(err)
		}
		w := weeks[b.Week]
		if w == nil {
			w = &WeekInfo{Week: b.Week}
			weeks[b.Week] = w
		}
		w.Claims += claims
		w.Bytes += bytes
		w.Scopes = append(w.Scopes, ScopeInfo{b.Scope, b.Week, claims, bytes})
	}
	list := make([]WeekInfo, 0, len(weeks))
	for _, w := range weeks {
		slices.SortFunc(w.Scopes, func(a, b ScopeInfo) int { return cmp.Compare(a.Scope, b.Scope) })
		list = append(list, *w)
	}
	slices.SortFunc(list, func(a, b WeekInfo) int { return cmp.Compare(a.Week, b.Week) })
	return list, nil
}

// currentCounts names the buckets in the committer, which alone frees names.
func (a *Admin) currentCounts(ctx context.Context) (map[storage.Bucket]uint64, error) {
	counts := make(map[storage.Bucket]uint64)
	err := a.queue.control(ctx, func(*group) error {
		if err := a.finder.incomplete(); err != nil {
			return err
		}
		for ref, claims := range a.finder.filters.Buckets() {
			name, err := a.finder.names.Name(ref.Scope)
			if err != nil {
				return err
			}
			counts[storage.Bucket{Scope: name, Week: ref.Week}] = claims
		}
		return nil
	})
	return counts, err
}

// Backup writes a consistent copy of the store to dir, which must not exist, while claims continue.
// The copy contains everything that was acknowledged before the call. Its identity has the same
// UUID and a higher incarnation. An engine that opens it rebuilds the filters by a scan.
func (a *Admin) Backup(ctx context.Context, dir string) error {
	return a.untilClose(ctx, func(ctx context.Context) error { return a.core.store.Backup(ctx, dir) })
}

// untilClose runs a long call of the store; Close cancels it.
func (a *Admin) untilClose(ctx context.Context, call func(ctx context.Context) error) error {
	if err := a.core.enter(); err != nil {
		return err
	}
	defer a.core.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.core.work, cancel)()
	err := call(ctx)
	if err != nil && a.core.work.Err() != nil {
		return ErrClosed
	}
	return err
}

// A ScopeInfo describes the claims of one scope in one week. Bytes is an estimate of their size on
// disk.
type ScopeInfo struct {
	Scope  string
	Week   weekbucket.Week
	Claims uint64
	Bytes  uint64
}

// A WeekInfo describes the claims of one week. Its scopes are sorted.
type WeekInfo struct {
	Week   weekbucket.Week
	Claims uint64
	Bytes  uint64
	Scopes []ScopeInfo
}
