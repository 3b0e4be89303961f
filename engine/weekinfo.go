package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

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

// A ScopeWeeks lists the retained weeks in which a scope has claims, oldest first. Oldest is the oldest
// retained week of the scope: its earlier events are TooOld.
type ScopeWeeks struct {
	Scope  string
	Oldest weekbucket.Week
	Weeks  []weekbucket.Week
}

// weekInfos adds the sizes to counts of claims.
func (q *queries) weekInfos(counts map[storage.Bucket]uint64) ([]WeekInfo, error) {
	if err := q.core.enter(); err != nil {
		return nil, err
	}
	defer q.core.leave()
	weeks := make(map[weekbucket.Week]*WeekInfo)
	for b, claims := range counts {
		bytes, err := q.core.store.BucketBytes(b)
		if err != nil {
			return nil, q.core.stop(err)
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

// buckets returns the buckets of retained weeks in key order. If the store is damaged, it also returns
// the DamageError.
func (q *queries) buckets(ctx context.Context) (list []storage.Bucket, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := q.core.enter(); err != nil {
		return nil, err
	}
	defer q.core.leave()
	err = q.core.store.Buckets(func(b storage.Bucket) error {
		if b.Week >= q.finder.retained.oldestOf(b.Scope) {
			list = append(list, b)
		}
		return ctx.Err()
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && !errors.As(err, new(*storage.DamageError)):
		return nil, q.core.stop(err)
	}
	return list, cmp.Or(q.core.settleContext(ctx), err)
}

// scopes is Admin.Scopes.
func (q *queries) scopes(ctx context.Context) (list []ScopeWeeks, err error) {
	buckets, err := q.buckets(ctx)
	for _, b := range buckets {
		if n := len(list); n == 0 || list[n-1].Scope != b.Scope {
			list = append(list, ScopeWeeks{Scope: b.Scope, Oldest: q.finder.retained.oldestOf(b.Scope)})
		}
		last := &list[len(list)-1]
		last.Weeks = append(last.Weeks, b.Week)
	}
	return list, err
}
