package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A WeekClaim is a durable claim on an id in a week.
type WeekClaim struct {
	Week   weekbucket.Week
	Record ClaimRecord
}

// lookup is Admin.Lookup.
func (q *queries) lookup(ctx context.Context, scope string, id []byte, at time.Time) (rec ClaimRecord, found bool, err error) {
	if at.IsZero() {
		all, err := q.lookupAll(ctx, scope, id)
		if err != nil || len(all) == 0 {
			return ClaimRecord{}, false, err
		}
		return all[0].Record, true, nil
	}
	if err := ctx.Err(); err != nil {
		return ClaimRecord{}, false, err
	}
	scope = q.core.opt.scope(scope)
	key, week, err := lookupKey(scope, id, at)
	if err != nil {
		return ClaimRecord{}, false, err
	}
	if err := q.core.enter(); err != nil {
		return ClaimRecord{}, false, err
	}
	defer q.core.leave()
	if week < q.finder.retained.oldestOf(scope) {
		return ClaimRecord{}, false, nil
	}
	rec, found, err = q.finder.readRetained(key, week)
	if err == nil {
		err = q.core.settleContext(ctx)
	}
	return rec, found && err == nil, err
}

// lookupAll is Admin.LookupAll.
func (q *queries) lookupAll(ctx context.Context, scope string, id []byte) (list []WeekClaim, err error) {
	scope = q.core.opt.scope(scope)
	if _, _, err := lookupKey(scope, id, time.Unix(0, 0)); err != nil {
		return nil, err
	}
	buckets, err := q.buckets(ctx)
	var damage *storage.DamageError
	if errors.As(err, &damage) && !concernsScope(damage, scope, q.finder.retained.oldestOf(scope)) {
		err = nil
	}
	if err != nil && damage == nil { // also none that is confined
		return nil, err
	}
	for _, b := range slices.Backward(buckets) {
		if b.Scope != scope {
			continue
		}
		rec, found, failed := q.lookup(ctx, scope, id, b.Week.Start())
		if found {
			list = append(list, WeekClaim{b.Week, rec})
		}
		if failed != nil && !isConfined(failed) {
			return nil, failed
		}
		err = cmp.Or(err, failed)
	}
	return list, err
}

// concernsScope reports whether claims of a scope from week oldest on may be in the damage.
func concernsScope(damage *storage.DamageError, scope string, oldest weekbucket.Week) bool {
	for i := range damage.Parts {
		first, last := damage.Parts[i].First, damage.Parts[i].Last
		if first.Scope <= scope && (scope < last.Scope || scope == last.Scope && last.Week >= oldest) {
			return true
		}
	}
	return false
}
