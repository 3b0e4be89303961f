// Package quota limits how many results of claims a tenant keeps.
package quota

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/internal/keyspace"
	"github.com/hapax-dev/hapax/weekbucket"
)

// space has the numbers of results that were kept. The key is the length of the scope as a uvarint,
// the scope, the week in the form of weekbucket, and the tenant; the value is the number in the
// form of engine.EncodeInt64. The transaction that finishes a claim increases the number.
var space = keyspace.New("idempotency")

// Options configure a Quota.
type Options struct {
	Scope  string        // scope of the claims
	Window time.Duration // the time for which results count
	Max    int           // maximum number of results of a tenant; 0 = no limit
	Clock  func() time.Time
}

// A Quota limits the results of each tenant. It is safe for concurrent use; a nil Quota has no limit.
type Quota struct {
	eng *engine.Engine
	opt Options

	mu      sync.Mutex
	running map[string]int  // runs that may keep a key, by tenant
	cleaned weekbucket.Week // numbers of earlier weeks were removed
}

// New returns a quota, nil if there is no limit.
func New(eng *engine.Engine, o Options) *Quota {
	if o.Max == 0 {
		return nil
	}
	return &Quota{eng: eng, opt: o, running: map[string]int{}}
}

// Enter reports whether a tenant may keep one more result. If so, Leave must be called once its run has
// ended.
func (q *Quota) Enter(ctx context.Context, tenant string) (bool, error) {
	if q == nil {
		return true, nil
	}
	q.mu.Lock()
	q.running[tenant]++
	running := q.running[tenant]
	q.mu.Unlock()
	kept, err := q.kept(ctx, tenant)
	if err != nil || kept+int64(running) > int64(q.opt.Max) {
		q.Leave(tenant)
		return false, err
	}
	return true, nil
}

// Leave ends a run for which Enter returned true.
func (q *Quota) Leave(tenant string) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[tenant]--; q.running[tenant] == 0 {
		delete(q.running, tenant)
	}
}

// kept returns the number of results that a tenant has kept in the weeks of the window.
func (q *Quota) kept(ctx context.Context, tenant string) (n int64, err error) {
	now := q.opt.Clock()
	first, err1 := weekbucket.Of(now.Add(-q.opt.Window))
	last, err2 := weekbucket.Of(now)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("hapax: the clock says %v", now)
	}
	for week := first; week <= last; week++ {
		value, found, err := driver.In(q.eng, space).Get(ctx, q.key(week, tenant))
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

// Add counts a result of the tenant in the transaction that finishes its claim.
func (q *Quota) Add(tx *engine.Tx, tenant string) error {
	if q == nil {
		return nil
	}
	week, err := weekbucket.Of(q.opt.Clock())
	if err != nil {
		return err
	}
	return driver.TxIn(tx, space).Add(q.key(week, tenant), 1)
}

// Finish finishes a claim with a result of the tenant, and counts it.
func (q *Quota) Finish(ctx context.Context, eng *engine.Engine, lease *engine.Lease, data []byte, tenant string) error {
	if q == nil {
		return eng.Finish(ctx, lease, data)
	}
	return eng.Update(ctx, func(tx *engine.Tx) error {
		if err := tx.Finish(lease, data); err != nil {
			return err
		}
		return q.Add(tx, tenant)
	}, engine.Retries(finishRetries))
}

const finishRetries = 10

// key returns the key of a tenant's number in a week.
func (q *Quota) key(week weekbucket.Week, tenant string) []byte {
	return append(week.AppendKey(q.prefix()), tenant...)
}

func (q *Quota) prefix() []byte {
	return append(binary.AppendUvarint(nil, uint64(len(q.opt.Scope))), q.opt.Scope...)
}

// mostCleaned bounds the numbers that one request removes.
const mostCleaned = 256

// clean removes numbers of weeks before first, some of them in each call until none is left.
func (q *Quota) clean(ctx context.Context, first weekbucket.Week) error {
	q.mu.Lock()
	done := q.cleaned == first
	q.mu.Unlock()
	if done {
		return nil
	}
	prefix := q.prefix()
	var old [][]byte
	for kv, err := range driver.In(q.eng, space).Scan(ctx, engine.Range{Prefix: prefix, Limit: mostCleaned}) {
		if err != nil {
			return err
		}
		week, err := weekbucket.FromKey(kv.Key[len(prefix) : len(prefix)+weekbucket.KeySize])
		if err != nil {
			return fmt.Errorf("hapax: a number of kept results: %w", err)
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
			if err := driver.TxIn(tx, space).Delete(key); err != nil {
				return err
			}
		}
		return nil
	}, engine.Retries(finishRetries))
}
