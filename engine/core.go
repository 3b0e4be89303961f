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

// A core has what the parts of an engine share: the store, the options, and the engine's state.
type core struct {
	store  storage.Reader
	writes storage.Store // nil in a Reader
	opt    Options
	seed   uint64

	applying atomic.Uint64 // Seq of the last batch handed to the store
	applied  watermark     // Seq of the last batch visible to reads
	durable  watermark     // Seq of the last durable batch

	work     context.Context // canceled when background work must stop
	stopWork func()
	behind   sync.WaitGroup

	calls   sync.RWMutex // read-locked by every call that uses the store; Close locks it for writing
	closed  bool         // guarded by calls
	closing atomic.Bool  // set before Close waits for calls, so that no later call waits

	failure atomic.Pointer[error]
	stopped chan struct{} // closed once failure is set

	reclaimingState chan struct{} // full during ReclaimState of the store

	left         departures
	ownerships   ownerships
	counters     counters
	observations observations
}

func (c *core) init(store storage.Reader, opt Options) {
	c.store, c.opt, c.seed, c.stopped = store, opt, store.Identity().Seed, make(chan struct{})
	c.work, c.stopWork = context.WithCancel(context.Background())
}

func (c *core) Identity() storage.Identity { return c.store.Identity() }

func (c *core) Err() error {
	if f := c.failure.Load(); f != nil {
		return *f
	}
	return nil
}

// isConfined reports whether an error of the store concerns only some claims and does not stop the
// engine.
func isConfined(err error) bool { return errors.As(err, new(*storage.DamageError)) }

// stop stops the engine and returns its error; the first cause is kept. Confined damage stops
// nothing, and is returned. Nothing stops a Reader.
func (c *core) stop(cause error) error {
	if isConfined(cause) || c.writes == nil {
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

// enter starts a call that uses the store; leave ends it.
func (c *core) enter() error {
	if err := c.works(); err != nil {
		return err
	}
	// Close waits for the calls that hold this lock, and such a call may wait for this one: do not
	// wait for Close here.
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

// beginClose cancels background work, and waits for the calls in progress. It returns ErrClosed if it
// was called before.
func (c *core) beginClose() error {
	c.closing.Store(true)
	// before locking calls: scans, verifications and backups hold a read lock until they are
	// canceled
	c.stopWork()
	c.calls.Lock()
	defer c.calls.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.closed = true
	return nil
}

// now returns the engine's time in UTC.
func (c *core) now() time.Time { return c.opt.Clock().UTC() }

// untilClose runs a long call of the store; Close cancels it.
func (c *core) untilClose(ctx context.Context, call func(ctx context.Context) error) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.work, cancel)()
	err := call(ctx)
	if err != nil && c.work.Err() != nil {
		return ErrClosed
	}
	return err
}

// settleContext waits until everything that reads may have seen so far is durable, or ctx ends. It
// must be called before an answer that depends on a read.
func (c *core) settleContext(ctx context.Context) error {
	return c.settleUpTo(ctx, c.applying.Load())
}

// settleUpTo waits until a batch and all earlier ones are durable, or ctx ends.
func (c *core) settleUpTo(ctx context.Context, seq uint64) error {
	if !c.durable.waitContext(ctx, seq) {
		return cmp.Or(c.Err(), ctx.Err())
	}
	return nil
}

// goBehind runs fn in a goroutine that Close cancels and waits for. Only the committer may call it,
// or a caller between enter and leave: Close waits for both before it waits for these goroutines.
func (c *core) goBehind(fn func(ctx context.Context)) {
	c.behind.Add(1)
	go func() {
		defer c.behind.Done()
		fn(c.work)
	}()
}

func (c *core) hash(key []byte) uint64 { return xxh3.HashSeed(key, c.seed) }

// lockName returns the name of a claim's reservation.
func (c *core) lockName(key []byte) occ.Name { return xxh3.Hash128Seed(key, c.seed) }
