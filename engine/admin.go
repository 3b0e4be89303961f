package engine

import (
	"context"
	"iter"
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
	queries queries
}

// Lookup returns the claim on an event if it is durable and in a retained week. If at is zero, it looks
// in all retained weeks, and returns the claim of the newest one that has any.
func (a *Admin) Lookup(ctx context.Context, scope string, id []byte, at time.Time) (rec ClaimRecord, found bool, err error) {
	return a.queries.lookup(ctx, scope, id, at)
}

// LookupAll returns the durable claims on an id in all retained weeks, the newest week first. Events with
// the same id in different weeks are different events. If the store is damaged where there may be another
// one, it returns a *storage.DamageError and the claims that it has found.
func (a *Admin) LookupAll(ctx context.Context, scope string, id []byte) ([]WeekClaim, error) {
	return a.queries.lookupAll(ctx, scope, id)
}

// Claims returns an iterator over the durable claims of a scope in a week, as of the start of the
// iteration. Claims are in the order of their keys on disk (ids of one form in the order of their
// bytes). If after is not empty, the iteration starts after that id. A dropped week has no claims.
//
// When ctx ends, the engine is closed or the store fails, the last pair has the error. Use Claims
// for operations and audits: the store cannot free the data that is being read, and a Pebble store
// first sorts the bucket's claims in memory.
func (a *Admin) Claims(ctx context.Context, b storage.Bucket, after []byte) iter.Seq2[Claim, error] {
	return a.queries.claims(ctx, b, after)
}

// Scopes lists the scopes with claims in retained weeks, sorted. Where the store is damaged, a scope may
// be missing, and Scopes also returns a *storage.DamageError.
func (a *Admin) Scopes(ctx context.Context) ([]ScopeWeeks, error) { return a.queries.scopes(ctx) }

// Offsets returns the durable offsets of a consumer group, or those of all groups if group is empty. It
// reads them as Engine.Scan does.
func (a *Admin) Offsets(ctx context.Context, group string) (map[OffsetKey]Offset, error) {
	return a.queries.offsets(ctx, group)
}

// Offset returns the durable next offset of a partition.
func (a *Admin) Offset(ctx context.Context, p OffsetKey) (o Offset, found bool, err error) {
	return a.queries.offset(ctx, p)
}

// Outbox returns an iterator over the messages that are not published yet, and those that are parked. It
// has the semantics of Engine.Scan.
func (a *Admin) Outbox(ctx context.Context) iter.Seq2[OutboxMessage, error] {
	return a.queries.outbox(ctx)
}

// Forget removes the claim on one event, durably on return, so that its next delivery is Claimed.
// It reports whether there was one. A claim that an open transaction holds is ErrConflict.
func (a *Admin) Forget(ctx context.Context, scope string, id []byte, at time.Time) (found bool, err error) {
	scope = a.core.opt.scope(scope)
	key, week, err := lookupKey(scope, id, at)
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
func lookupKey(scope string, id []byte, at time.Time) ([]byte, weekbucket.Week, error) {
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
	return a.queries.weekInfos(counts)
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
	return a.core.untilClose(ctx, func(ctx context.Context) error { return a.core.writes.Backup(ctx, dir) })
}
