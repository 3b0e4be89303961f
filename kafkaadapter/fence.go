package kafkaadapter

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A fence makes an assignment the owner of its partition in the store. Each batch reads the owner,
// so that no batch of an assignment commits after it has lost the partition. The fence also keeps
// the attempts at the next record.
type fence struct {
	eng   func() *engine.Engine
	pos   engine.Position
	token [16]byte

	// The goroutine's own.
	taken   bool
	width   uint32 // the most records that a batch may hold, as stored
	tries   attempts
	careful int  // the number of records that are still to be handled one by one, their attempts stored first
	marked  bool // the attempt at the next record is stored
}

func newFence(eng func() *engine.Engine, pos engine.Position) fence {
	f := fence{eng: eng, pos: pos}
	_, _ = rand.Read(f.token[:]) // it cannot fail
	return f
}

// take makes the assignment the owner. If the owner before it did not leave, as many records as its
// batches held are handled with care.
func (f *fence) take(tx *engine.Tx, width int) error {
	old, err := readOwner(tx, f.pos)
	if err != nil {
		return err
	}
	f.width = uint32(width)
	switch old.token {
	case f.token: // it is looked up again
	case owner{}.token:
		f.careful = 0
	default:
		f.careful = int(old.width)
		if f.taken { // from this assignment, by a consumer of the same process: nobody died
			f.careful = 0
		}
	}
	return tx.Put(partitionKey(keyOwner, f.pos), owner{f.token, f.width}.encode())
}

// check fails if the partition has another owner by now. The read is part of the transaction: an
// owner that comes before the transaction commits is a conflict.
func (f *fence) check(tx *engine.Tx) error {
	o, err := readOwner(tx, f.pos)
	if err == nil && o.token != f.token {
		err = ErrFenced
	}
	return err
}

// widen stores that batches may hold width records. It is stored before they are made, so that
// after a crash it is known how many records may have been under way.
func (f *fence) widen(tx *engine.Tx, width uint32) error {
	return tx.Put(partitionKey(keyOwner, f.pos), owner{f.token, width}.encode())
}

// release leaves the partition without an owner, unless there is another one. It always writes, so
// that a transaction that has read the owner before is in conflict with it, or came before it.
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
		return tx.Put(partitionKey(keyOwner, f.pos), o.encode())
	}, engine.Retries(1000))
}

// fenceTime bounds the wait for the store where an assignment is cut off.
const fenceTime = time.Second

// mark stores that an attempt at the record begins, so that it counts even if the process does not
// survive it.
func (f *fence) mark(ctx context.Context, rec *kgo.Record, limit uint64) error {
	if f.marked {
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
		return tx.Put(partitionKey(keyAttempts, f.pos), tries.encode())
	}, engine.Retries(100))
	if err == nil {
		f.tries, f.marked = tries, true
	}
	return err
}

// leave ends the ownership in order, from the goroutine. An attempt that was stored and did not
// begin is taken back; one that was cut off stays, since nothing of this owner commits any more by
// then.
func (f *fence) leave(ctx context.Context, log *slog.Logger) {
	if f.marked {
		if err := f.unmark(ctx); err != nil && !isEnd(err) {
			log.Warn("an attempt that did not begin stays counted", "offset", f.tries.offset, "error", err)
		}
	}
	if err := f.release(); err != nil {
		log.Error("giving up a partition in the store failed", "error", err)
	}
}

func (f *fence) unmark(ctx context.Context) error {
	tries := attempts{offset: f.tries.offset, n: f.tries.n - 1}
	return f.eng().Update(ctx, func(tx *engine.Tx) error {
		if err := f.check(tx); err != nil {
			return err
		}
		return f.putTries(tx, tries)
	}, engine.Retries(100))
}

// readTries reads the attempts at the next record. One that was stored and did not begin is taken
// back.
func (f *fence) readTries(tx *engine.Tx) (err error) {
	if f.tries, err = readAttempts(tx, f.pos); err != nil || !f.marked {
		return err
	}
	f.tries.n--
	return f.putTries(tx, f.tries)
}

func (f *fence) putTries(tx *engine.Tx, tries attempts) error {
	key := partitionKey(keyAttempts, f.pos)
	if tries.n == 0 {
		return tx.Delete(key)
	}
	return tx.Put(key, tries.encode())
}

func readOwner(tx *engine.Tx, pos engine.Position) (o owner, err error) {
	b, found, err := tx.Get(partitionKey(keyOwner, pos))
	if err != nil || !found {
		return o, err
	}
	return parseOwner(b)
}

func readAttempts(tx *engine.Tx, pos engine.Position) (a attempts, err error) {
	b, found, err := tx.Get(partitionKey(keyAttempts, pos))
	if err != nil || !found {
		return a, err
	}
	return parseAttempts(b)
}

func isEnd(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrFenced) }

// isPositionError reports whether a fetch failed because of where it reads: the partition is looked
// up again.
func isPositionError(err error) bool {
	return errors.As(err, new(*kgo.ErrDataLoss)) || errors.Is(err, kerr.OffsetOutOfRange) ||
		errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID) || errors.Is(err, ErrRecreated)
}
