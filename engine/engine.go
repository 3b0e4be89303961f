package engine

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// An Engine decides who may handle an event. It is safe for use by any number of goroutines. Open
// makes one.
//
// Inside, one goroutine, the committer, decides in order; a second one, the applier, hands one
// batch after the other to the store, while the next one is decided; a third one, the releaser,
// lets the answers go in the same order, each once the batch it rests on is durable. No verdict
// waits for a transaction (members of the lane wait for a turn before they begin, lane.go), and no
// lock is held during I/O or while a closure runs.
type Engine struct {
	store storage.Store
	opt   Options
	seed  uint64

	requests chan request // to the committer
	batches  chan *group  // from the committer to the applier, in order
	groups   chan *group  // from the applier to the releaser, in order
	spares   spares

	observations observations

	names  *names
	screen *screen
	recent *recent
	sums   *sums

	// The committer's own; others use the atomics below.
	seq       uint64          // of the last batch handed to the applier
	put       putClaims       // what the store may not show yet
	decideOld weekbucket.Week // oldest week kept, as decided
	sinceSnap uint64          // claims put since the last snapshot was begun
	committed time.Time       // the latest time that PutCommitTime gave a batch

	oldest   atomic.Uint32 // oldest week kept, durable
	floors   floors        // oldest weeks kept of single scopes
	applying atomic.Uint64 // seq of the last batch handed to the store
	applied  watermark     // seq of the last batch visible to reads
	durable  watermark     // seq of the last batch that is durable

	tx    transactions
	lane  lane
	holds holds
	snaps snapshots

	outbox outbox

	drops   sync.Mutex // held by the goroutine that raises the oldest week, until the claims are gone
	reclaim reclaim

	reclaimingState sync.Mutex // held during ReclaimState of the store

	work     context.Context // done when the work behind is to stop
	stopWork func()
	behind   sync.WaitGroup

	calls   sync.RWMutex // held for reading by every call that uses the store; Close takes it for writing
	closed  bool         // guarded by calls
	closing atomic.Bool  // set before Close waits for calls, so that no call queues after it
	loops   sync.WaitGroup

	failure atomic.Pointer[error]
	stopped chan struct{} // closed once failure is set

	counters counters
	source   FilterSource
}

// Identity returns the store's identity.
func (e *Engine) Identity() storage.Identity { return e.store.Identity() }

// Err returns nil while the engine works, and an error that wraps ErrStopped and the cause once its
// store has failed.
func (e *Engine) Err() error {
	if f := e.failure.Load(); f != nil {
		return *f
	}
	return nil
}

// stop ends all answering. The first cause stays.
func (e *Engine) stop(cause error) error {
	err := fmt.Errorf("%w: %w", ErrStopped, cause)
	if e.failure.CompareAndSwap(nil, &err) {
		close(e.stopped)
		e.applied.fail()
		e.durable.fail()
	}
	return e.Err()
}

// works returns nil while the engine is open and its store has not failed.
func (e *Engine) works() error {
	if e.closing.Load() {
		return ErrClosed
	}
	return e.Err()
}

// enter begins a call that uses the store; leave ends it.
func (e *Engine) enter() error {
	if err := e.works(); err != nil {
		return err
	}
	// Close waits for the calls that hold it. A call for which one of these waits must not wait for
	// Close.
	if !e.calls.TryRLock() {
		return ErrClosed
	}
	if e.closed {
		e.calls.RUnlock()
		return ErrClosed
	}
	return nil
}

func (e *Engine) leave() { e.calls.RUnlock() }

// now is the engine's time as it is kept in records.
func (e *Engine) now() time.Time { return e.opt.Clock().UTC() }

// settle waits until everything that a read may have seen until now is durable. Every answer that
// rests on a read goes through it.
func (e *Engine) settle() error {
	if !e.durable.wait(e.applying.Load()) {
		return e.Err()
	}
	return nil
}

// settleContext is settle, which ends with ctx.
func (e *Engine) settleContext(ctx context.Context) error {
	if !e.durable.waitContext(ctx, e.applying.Load()) {
		return cmp.Or(e.Err(), ctx.Err())
	}
	return nil
}
