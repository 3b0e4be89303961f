package idempotency

import (
	"context"
	"fmt"
	"sync"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/weekbucket"
)

// countSpace has the numbers of keys that were kept. The key is that of the scope's bytes as
// appendBytes appends them, the week in the form of weekbucket, and the tenant; the value is the number
// in the form of engine.EncodeInt64. A number is added to in the transaction that finishes a key.
var countSpace = keyspace.New("idempotency")

// A quota limits the kept keys of each tenant (Options.MaxKeysPerTenant).
type quota struct {
	eng *engine.Engine
	opt *Options

	mu      sync.Mutex
	running map[string]int  // runs that may keep a key, by tenant
	cleaned weekbucket.Week // earlier numbers were removed
}

// newQuota returns nil if there is no limit.
func newQuota(eng *engine.Engine, o *Options) *quota {
	if o.MaxKeysPerTenant == 0 {
		return nil
	}
	return &quota{eng: eng, opt: o, running: map[string]int{}}
}

// enter reports whether a tenant may keep one more key. If so, leave must be called once the run has
// ended.
func (q *quota) enter(ctx context.Context, tenant string) (bool, error) {
	if q == nil {
		return true, nil
	}
	q.mu.Lock()
	q.running[tenant]++
	running := q.running[tenant]
	q.mu.Unlock()
	kept, err := q.kept(ctx, tenant)
	if err != nil || kept+int64(running) > int64(q.opt.MaxKeysPerTenant) {
		q.leave(tenant)
		return false, err
	}
	return true, nil
}

func (q *quota) leave(tenant string) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[tenant]--; q.running[tenant] == 0 {
		delete(q.running, tenant)
	}
}

// kept returns the number of keys that a tenant has kept in the weeks of the retention.
func (q *quota) kept(ctx context.Context, tenant string) (n int64, err error) {
	now := q.opt.Clock()
	first, err1 := weekbucket.Of(now.Add(-q.opt.Retention))
	last, err2 := weekbucket.Of(now)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("idempotency: the clock says %v", now)
	}
	for week := first; week <= last; week++ {
		value, found, err := q.eng.In(countSpace).Get(ctx, q.key(week, tenant))
		if err != nil {
			return 0, err
		}
		if !found {
			continue
		}
		inWeek, err := engine.DecodeInt64(value)
		if err != nil {
			return 0, err
		}
		n += inWeek
	}
	return n, q.clean(ctx, first)
}

// add counts a key of the tenant that the transaction finishes.
func (q *quota) add(tx *engine.Tx, tenant string) error {
	if q == nil {
		return nil
	}
	week, err := weekbucket.Of(q.opt.Clock())
	if err != nil {
		return err
	}
	return tx.In(countSpace).Add(q.key(week, tenant), 1)
}

// finish finishes a key of the tenant and counts it.
func (q *quota) finish(ctx context.Context, lease *engine.Lease, data []byte, tenant string) error {
	return q.eng.Update(ctx, func(tx *engine.Tx) error {
		if err := tx.Finish(lease, data); err != nil {
			return err
		}
		return q.add(tx, tenant)
	}, engine.Retries(finishRetries))
}

const finishRetries = 10

// key is that of a tenant's number in a week.
func (q *quota) key(week weekbucket.Week, tenant string) []byte {
	return append(week.AppendKey(appendBytes(nil, q.opt.Scope)), tenant...)
}

// mostCleaned bounds the numbers that one request removes.
const mostCleaned = 256

// clean removes numbers of weeks before first, some of them in each call until none is left.
func (q *quota) clean(ctx context.Context, first weekbucket.Week) error {
	q.mu.Lock()
	done := q.cleaned == first
	q.mu.Unlock()
	if done {
		return nil
	}
	prefix := appendBytes(nil, q.opt.Scope)
	var old [][]byte
	for kv, err := range q.eng.In(countSpace).Scan(ctx, engine.Range{Prefix: prefix, Limit: mostCleaned}) {
		if err != nil {
			return err
		}
		week, err := weekbucket.FromKey(kv.Key[len(prefix) : len(prefix)+weekbucket.KeySize])
		if err != nil {
			return fmt.Errorf("idempotency: a number of kept keys: %w", err)
		}
		if week >= first {
			break
		}
		old = append(old, kv.Key)
	}
	if len(old) < mostCleaned {
		q.mu.Lock()
		q.cleaned = first
		q.mu.Unlock()
	}
	if len(old) == 0 {
		return nil
	}
	return q.eng.Update(ctx, func(tx *engine.Tx) error {
		for _, key := range old {
			if err := tx.In(countSpace).Delete(key); err != nil {
				return err
			}
		}
		return nil
	}, engine.Retries(finishRetries))
}
