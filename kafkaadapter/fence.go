package kafkaadapter

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A fence makes an assignment the owner of its partition in the store. Each batch reads the owner,
// so that no batch of an assignment commits after it has lost the partition. The fence also stores
// the attempts at the next record.
type fence struct {
	eng   func() *engine.Engine
	pos   engine.OffsetKey
	token [16]byte

	// Used only by the goroutine.
	taken   bool
	width   uint32 // the most records that a batch may hold, as stored
	tries   attempts
	careful int  // the number of records still to be handled one by one
	undone  bool // the stored attempt is that of an earlier owner whose goroutine runs

	marked *atomic.Bool // the attempt at the next record is stored; a later owner reads it
}

// alive has a liveOwner for each token of an assignment that has become an owner and whose goroutine
// runs. The consumers of a process share it, because partitions move between them.
var alive sync.Map

type liveOwner struct {
	eng    *engine.Engine
	marked *atomic.Bool
}

func newFence(eng func() *engine.Engine, pos engine.OffsetKey) fence {
	f := fence{eng: eng, pos: pos, marked: &atomic.Bool{}}
	_, _ = rand.Read(f.token[:]) // it cannot fail
	return f
}

// take makes the assignment the owner. If the earlier owner did not leave, the next records, as
// many as its batches could contain, are handled one by one.
func (f *fence) take(tx *engine.Tx, width int) error {
	old, err := readOwner(tx, f.pos)
	if err != nil {
		return err
	}
	f.width, f.undone = uint32(width), false
	switch old.token {
	case f.token: // it is looked up again
	case owner{}.token:
		f.careful = 0
	default:
		f.careful = int(old.width)
		// by a consumer of this process, or from this assignment by one: no process died
		before, _ := alive.Load(old.token)
		if before, ok := before.(liveOwner); ok && before.eng == f.eng() {
			f.careful, f.undone = 0, before.marked.Load()
		} else if f.taken {
			f.careful = 0
		}
	}
	alive.Store(f.token, liveOwner{f.eng(), f.marked})
	return own(tx).Put(partitionKey(keyOwner, f.pos), owner{f.token, f.width}.encode())
}

// check returns an error if the partition has another owner. The read is part of the transaction: a
// change of the owner before the commit is a conflict.
func (f *fence) check(tx *engine.Tx) error {
	o, err := readOwner(tx, f.pos)
	if err == nil && o.token != f.token {
		err = ErrFenced
	}
	return err
}

// widen stores the maximum number of records of a batch. It is stored before larger batches are
// made, so that after a crash it is known how many records may have been in progress.
func (f *fence) widen(tx *engine.Tx, width uint32) error {
	return own(tx).Put(partitionKey(keyOwner, f.pos), owner{f.token, width}.encode())
}

// release removes this owner, unless the partition has another one. It always writes, so that a
// transaction that has read the owner either commits before it or conflicts with it.
func (f *fence) release() error {
	eng := f.eng()
	if eng == nil {
		return nil
	}
	return eng.Update(context.Background(), func(tx *engine.Tx) error {
		o, err := readOwner(tx, f.pos)
		if err != nil {
			return err
		}
		if o.token == f.token {
			o.token = owner{}.token
		}
		return own(tx).Put(partitionKey(keyOwner, f.pos), o.encode())
	}, engine.Retries(1000))
}

// fenceTime bounds the wait for the store when an assignment is cut off.
const fenceTime = time.Second

// mark stores that an attempt at the record begins, so that it counts even if the process dies
// during it.
func (f *fence) mark(ctx context.Context, rec *kgo.Record, limit uint64) error {
	if f.marked.Load() {
		return nil
	}
	tries := f.tries
	if tries.offset != rec.Offset {
		tries = attempts{offset: rec.Offset}
	}
	if uint64(tries.n) >= limit {
		return nil
	}
	tries.n++
	err := f.eng().Update(ctx, func(tx *engine.Tx) error {
		if err := f.check(tx); err != nil {
			return err
		}
		return own(tx).Put(partitionKey(keyAttempts, f.pos), tries.encode())
	}, engine.Retries(100))
	if err == nil {
		f.marked.Store(true)
		f.tries = tries
	}
	return err
}

// leave ends the ownership when the goroutine ends normally. An attempt that was stored but did not
// begin is removed. An attempt that was cut off remains, because this owner can no longer commit.
func (f *fence) leave(ctx context.Context, log *slog.Logger) {
	if err := f.unmark(ctx); err != nil && !isEnd(err) {
		log.Warn("an attempt that did not begin could not be removed and still counts", "offset", f.tries.offset, "error", err)
	}
	if err := f.release(); err != nil {
		log.Error("releasing a partition in the store failed", "error", err)
	}
}

// unmark removes the stored attempt at the next record, if there is one, because no handler runs: a
// failed attempt is counted anew with its batch.
func (f *fence) unmark(ctx context.Context) error {
	if !f.marked.Load() {
		return nil
	}
	tries := attempts{}
	if f.tries.n > 1 {
		tries = attempts{offset: f.tries.offset, n: f.tries.n - 1}
	}
	err := f.eng().Update(ctx, func(tx *engine.Tx) error {
		if err := f.check(tx); err != nil {
			return err
		}
		return f.putTries(tx, tries)
	}, engine.Retries(100))
	if err == nil {
		f.marked.Store(false)
		f.tries = tries
	}
	return err
}

// endAttempt is unmark before a stop is reported: code that learns of the stop may end the process. The
// worker, which does the same when it ends, returns the error.
func (f *fence) endAttempt(ctx context.Context) { _ = f.unmark(ctx) }

// readTries reads the attempts at the next record, without an attempt that was stored but did not
// begin, or that an earlier owner still makes.
func (f *fence) readTries(tx *engine.Tx) (err error) {
	if f.tries, err = readAttempts(tx, f.pos); err != nil || f.tries.n == 0 || !f.marked.Load() && !f.undone {
		return err
	}
	f.tries.n--
	return f.putTries(tx, f.tries)
}

func (f *fence) putTries(tx *engine.Tx, tries attempts) error {
	key := partitionKey(keyAttempts, f.pos)
	if tries.n == 0 {
		return own(tx).Delete(key)
	}
	return own(tx).Put(key, tries.encode())
}

func readOwner(tx *engine.Tx, pos engine.OffsetKey) (o owner, err error) {
	b, found, err := tx.Get(partitionKey(keyOwner, pos))
	if err != nil || !found {
		return o, err
	}
	return parseOwner(b)
}

func readAttempts(tx *engine.Tx, pos engine.OffsetKey) (a attempts, err error) {
	b, found, err := tx.Get(partitionKey(keyAttempts, pos))
	if err != nil || !found {
		return a, err
	}
	return parseAttempts(b)
}

func isEnd(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrFenced) }

// isPositionError reports whether a fetch failed because of its offset, so that the partition must
// be looked up again.
func isPositionError(err error) bool {
	return errors.As(err, new(*kgo.ErrDataLoss)) || errors.Is(err, kerr.OffsetOutOfRange) ||
		errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID) || errors.Is(err, ErrRecreated)
}
