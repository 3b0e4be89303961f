package outbox

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/driver"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/decode"
	"github.com/hapax-dev/hapax/internal/entry"
)

// A lease gives one relay the right to publish from the store. It is one key of the store, whose
// value is
//
//	owner 16 bytes | taken or renewed varint milliseconds | time to live varint milliseconds
//
// Every write of a relay is a transaction that reads it and fails if the owner is another one, so
// that a relay that has lost its lease changes nothing.
type lease struct {
	owner [16]byte
	clock Clock
	ttl   time.Duration
	renew time.Duration // the time after which it is renewed

	held  bool
	since time.Time // taken or renewed; read before the transaction that wrote it

	other leaseRecord // the last lease of another relay that this relay has seen
	seen  time.Time   // when other was seen first
}

func newLease(o *Options) *lease {
	l := &lease{clock: o.Clock, ttl: o.Lease.TTL, renew: o.Lease.TTL - o.Lease.Margin}
	_, _ = rand.Read(l.owner[:]) // never fails
	return l
}

// leaseRecord is the stored form of the lease.
type leaseRecord struct {
	owner [16]byte
	since time.Time
	ttl   time.Duration
}

func (r leaseRecord) encode() []byte {
	b := append([]byte{}, r.owner[:]...)
	b = binary.AppendVarint(b, r.since.UnixMilli())
	return binary.AppendVarint(b, r.ttl.Milliseconds())
}

func parseLease(b []byte) (r leaseRecord, err error) {
	d := decode.Decoder{Rest: b}
	copy(r.owner[:], d.Take(16))
	since, ttl := d.Varint(), d.Varint()
	if d.Bad || len(d.Rest) > 0 {
		return r, fmt.Errorf("%w: lease %x of the outbox", storage.ErrDamaged, b)
	}
	r.since, r.ttl = time.UnixMilli(since), time.Duration(ttl)*time.Millisecond
	return r, nil
}

// owners has the relays of this process that may have taken a lease. One engine at a time has the
// store: a lease of any other owner, or of a relay of another engine, is that of a process or an engine
// that has ended, or of a member that has lost the store's log to this one.
var owners sync.Map

// A leaseOwner is a relay of an engine.
type leaseOwner struct {
	eng   *engine.Engine
	owner [16]byte
}

// live adds the relay to owners until end is called.
func (l *lease) live(eng *engine.Engine) (end func()) {
	o := leaseOwner{eng, l.owner}
	owners.Store(o, nil)
	return func() { owners.Delete(o) }
}

// left returns the remaining time of another relay's lease. The lease has ended when its time has
// passed by the clock, or when its time to live has passed since this relay first saw it. So a
// lease that was taken before the clock was set back ends too. The lease of an earlier owner of the store
// has no time left.
func (l *lease) left(eng *engine.Engine, r leaseRecord, now time.Time) time.Duration {
	if _, found := owners.Load(leaseOwner{eng, r.owner}); !found {
		return 0
	}
	if r.owner != l.other.owner || !r.since.Equal(l.other.since) {
		l.other, l.seen = r, now
	}
	return min(r.since.Add(r.ttl).Sub(now), r.ttl-now.Sub(l.seen))
}

// take takes the lease if no relay has it. left is the remaining time of the other relay's lease.
func (l *lease) take(ctx context.Context, eng *engine.Engine) (left time.Duration, err error) {
	now := l.clock.Now()
	err = eng.Update(ctx, func(tx *engine.Tx) error {
		value, found, err := driver.TxIn(tx, entry.Space).Get(entry.LeaseKey)
		if err != nil {
			return err
		}
		left = 0
		if found {
			r, err := parseLease(value)
			if err != nil {
				return err
			}
			if left = l.left(eng, r, now); left > 0 && r.owner != l.owner {
				return nil
			}
		}
		left = 0
		return l.put(tx, now)
	}, engine.Retries(leaseRetries))
	if err == nil && left == 0 {
		l.held, l.since = true, now
	}
	return left, err
}

const leaseRetries = 20

func (l *lease) put(tx *engine.Tx, now time.Time) error {
	return driver.TxIn(tx, entry.Space).Put(entry.LeaseKey, leaseRecord{l.owner, now, l.ttl}.encode())
}

// update runs fn in a transaction that commits only if the relay has the lease, and renews the
// lease if that is due. It runs fn again after conflicts with other writers, such as Relay.Redrive,
// until fn commits or ctx has ended. If it gave up earlier, the published messages that fn removes
// would be published again.
func (l *lease) update(ctx context.Context, eng *engine.Engine, fn func(tx *engine.Tx) error) error {
	if !l.held {
		return errLeaseLost
	}
	now := l.clock.Now()
	renew := l.due(now)
	attempt := func(tx *engine.Tx) error {
		value, found, err := driver.TxIn(tx, entry.Space).Get(entry.LeaseKey)
		if err != nil {
			return err
		}
		if r, err := parseLease(value); err != nil || !found || r.owner != l.owner {
			return errors.Join(errLeaseLost, err)
		}
		if renew {
			if err := l.put(tx, now); err != nil {
				return err
			}
		}
		return fn(tx)
	}
	// The transaction is short and its outcome must be known: no context ends it.
	err := eng.Update(context.Background(), attempt, engine.Retries(leaseRetries))
	for errors.Is(err, engine.ErrConflict) && ctx.Err() == nil {
		err = eng.Update(context.Background(), attempt, engine.Retries(leaseRetries))
	}
	if errors.Is(err, errLeaseLost) {
		l.held = false
	}
	if err == nil && renew {
		l.since = now
	}
	return err
}

// due reports whether the lease must be renewed.
func (l *lease) due(now time.Time) bool { return now.Sub(l.since) >= l.renew || now.Before(l.since) }

// untilRenewal returns the time until the lease must be renewed.
func (l *lease) untilRenewal() time.Duration { return l.renew - l.clock.Now().Sub(l.since) }

// covers reports whether the lease lasts for at least d.
func (l *lease) covers(d time.Duration) bool {
	elapsed := l.clock.Now().Sub(l.since)
	return l.held && elapsed >= 0 && elapsed+d <= l.ttl
}

// ensure renews the lease if that is due, or if it may not last for d.
func (l *lease) ensure(eng *engine.Engine, d time.Duration) error {
	now := l.clock.Now()
	if l.held && !l.due(now) && l.covers(d) {
		return nil
	}
	if l.held && !l.due(now) {
		l.since = now.Add(-l.renew) // renew it early
	}
	return l.update(context.Background(), eng, func(*engine.Tx) error { return nil })
}

// release releases the lease if the relay still has it.
func (l *lease) release(eng *engine.Engine) error {
	if !l.held {
		return nil
	}
	err := l.update(context.Background(), eng, func(tx *engine.Tx) error { return driver.TxIn(tx, entry.Space).Delete(entry.LeaseKey) })
	l.held = false
	if errors.Is(err, errLeaseLost) {
		return nil
	}
	return err
}
