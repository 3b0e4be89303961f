package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/occ"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/zeebo/xxh3"
)

// A core is what the parts of an engine share: the store, the options, and whether the engine
// works.
type core struct {
	store storage.Store
	opt   Options
	seed  uint64

	applying atomic.Uint64 // seq of the last batch handed to the store
	applied  watermark     // seq of the last batch visible to reads
	durable  watermark     // seq of the last batch that is durable

	work     context.Context // done when background work must stop
	stopWork func()
	behind   sync.WaitGroup

	calls   sync.RWMutex // held for reading by every call that uses the store; Close takes it for writing
	closed  bool         // guarded by calls
	closing atomic.Bool  // set before Close waits for calls, so that no call queues after it

	failure atomic.Pointer[error]
	stopped chan struct{} // closed once failure is set

	reclaimingState chan struct{} // has a value during ReclaimState of the store

	left         departures
	ownerships   ownerships
	counters     counters
	observations observations
}

func (c *core) Identity() storage.Identity { return c.store.Identity() }

func (c *core) Err() error {
	if f := c.failure.Load(); f != nil {
		return *f
	}
	return nil
}

// isConfined reports whether an error of the store concerns only some claims: the engine goes on.
func isConfined(err error) bool { return errors.As(err, new(*storage.DamageError)) }

// stop ends all judging. The first cause is kept. Damage that is confined stops nothing, and is returned.
func (c *core) stop(cause error) error {
	if isConfined(cause) {
		return cause
	}
	err := fmt.Errorf("%w: %w", ErrStopped, cause)
	if c.failure.CompareAndSwap(nil, &err) {
		close(c.stopped)
		c.applied.fail()
		c.durable.fail()
	}
	return c.Err()
}

// works returns nil while the engine is open and its store has not failed.
func (c *core) works() error {
	if c.closing.Load() {
		return ErrClosed
	}
	return c.Err()
}

// enter begins a call that uses the store; leave ends it.
func (c *core) enter() error {
	if err := c.works(); err != nil {
		return err
	}
	// Close waits for the calls that hold it. A call for which one of these waits must not wait for
	// Close.
	if !c.calls.TryRLock() {
		return ErrClosed
	}
	if c.closed {
		c.calls.RUnlock()
		return ErrClosed
	}
	return nil
}

func (c *core) leave() { c.calls.RUnlock() }

// now returns the engine's time as records contain it.
func (c *core) now() time.Time { return c.opt.Clock().UTC() }

// settleContext waits until everything that a read may have seen so far is durable, or ctx ends. Every
// answer that depends on a read waits for it.
func (c *core) settleContext(ctx context.Context) error {
	return c.settleUpTo(ctx, c.applying.Load())
}

// settleUpTo waits until a batch and all before it are durable, or ctx ends.
func (c *core) settleUpTo(ctx context.Context, seq uint64) error {
	if !c.durable.waitContext(ctx, seq) {
		return cmp.Or(c.Err(), ctx.Err())
	}
	return nil
}

// goBehind runs fn in a goroutine that Close cancels and waits for. Only the committer may call it,
// or a caller between enter and leave: Close waits for both before it waits for the goroutines that
// they began.
func (c *core) goBehind(fn func(ctx context.Context)) {
	c.behind.Add(1)
	go func() {
		defer c.behind.Done()
		fn(c.work)
	}()
}

func (c *core) hash(key []byte) uint64 { return xxh3.HashSeed(key, c.seed) }

// lockName returns the name of the reservation of a claim.
func (c *core) lockName(key []byte) occ.Name { return xxh3.Hash128Seed(key, c.seed) }
