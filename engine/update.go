package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/internal/lane"
	"github.com/hapax-dev/hapax/internal/untrusted"
)

// UpdateOptions change how Update runs. The zero value is safe.
type UpdateOptions struct {
	// Retries is how many more times Update runs its closure when it conflicts with another writer
	// (ErrConflict), each time as soon as the conflicting write is visible. The closure must be
	// safe to run again.
	Retries int

	// AllowUnsyncedDuplicates lets a transaction return Duplicate inside its closure before the claim on
	// which it depends is durable; the claim is durable when Update returns nil, because the
	// transaction's own batch comes after it. It saves a wait for each such verdict. An event that
	// another transaction is just committing is also a Duplicate, once that is visible, and not
	// InFlight. The closure must do nothing outside the transaction because of a Duplicate, such as
	// acknowledging the event.
	AllowUnsyncedDuplicates bool
}

// Retries returns UpdateOptions with that number of retries.
func Retries(n int) UpdateOptions { return UpdateOptions{Retries: n} }

// with returns the options with those of other that are set.
func (o UpdateOptions) with(other UpdateOptions) UpdateOptions {
	o.Retries = cmp.Or(other.Retries, o.Retries)
	o.AllowUnsyncedDuplicates = o.AllowUnsyncedDuplicates || other.AllowUnsyncedDuplicates
	return o
}

// Update runs fn in a transaction. The claims, reads and writes of fn through tx commit in one
// batch of the store, or none of them does. When Update returns nil it is durable. If it returns an
// error, or fn panics, nothing is applied and the claims are free again (at least once on failure:
// the application needs a limit of attempts and a place for events that never succeed). The one
// exception is an error that wraps ErrOutcomeUnknown: the store failed while it wrote the batch,
// which may be durable, whole, or not. Open the store again, and look up a claim or a key of the
// transaction.
//
// A transaction is bounded by limits.TxBytes, limits.TxClaims, limits.TxReadBytes and
// limits.TxScans, beyond which its methods return ErrLimit. If others write more than 64 MiB of keys
// while it is open, and it has read anything, it returns ErrConflict.
//
// Transactions are serializable over claims, application keys and offsets, absent ones included; but
// Pending, and Duplicate of a claim that is withdrawn later, are verdicts as of the time at which they
// are returned: another caller may finish or withdraw that claim before the transaction commits.
// After a conflict, Update returns ErrConflict with nothing applied, as soon as the conflicting writes
// are visible to a new transaction. No verdict waits for a transaction that is open, so that two of them cannot block each other
// (driver.UpdateOptions.Lane makes transactions wait before they begin, for a bounded time); fn runs under
// no lock, and may use the engine in addition to tx: an at-most-once claim made inside it commits
// by itself.
//
// Several options are combined; of two values for one field the last one that is not zero
// counts.
//
// If ctx ends before the commit is decided, nothing is applied. After that Update waits for the
// outcome, also if the store stalls: a transaction that was decided cannot be withdrawn, and a caller
// that does not know its outcome could neither run it again nor leave it. If ctx ends while fn runs,
// the transaction ends then: its claims are free for others, and its methods return ErrNoTransaction.
// If fn returns that error or nil, Update returns the context's error.
func (e *Engine) Update(ctx context.Context, fn func(tx *Tx) error, options ...UpdateOptions) error {
	var opt UpdateOptions
	for _, o := range options {
		opt = opt.with(o)
	}
	return e.update(ctx, fn, opt, beforeTurn{})
}

// A beforeTurn is what Update does before a transaction waits for its turn, see
// driver.UpdateOptions.
type beforeTurn struct {
	member       *lane.Member // nil: it is not in the lane
	expected     []Event
	onPrefetched func(claimed []bool)
}

func (e *Engine) update(ctx context.Context, fn func(tx *Tx) error, opt UpdateOptions, before beforeTurn) error {
	for attempt := 0; ; attempt++ {
		err := e.updateOnce(ctx, fn, &opt, &before)
		if !untrusted.Is(err, ErrConflict) || attempt >= opt.Retries { // it may be the closure's error
			return err
		}
		before.expected, before.onPrefetched = nil, nil
	}
}

func (e *Engine) updateOnce(ctx context.Context, fn func(tx *Tx) error, opt *UpdateOptions, before *beforeTurn) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.core.enter(); err != nil {
		return err
	}
	tx := e.transactor.begin()
	tx.judge.lazy, tx.judge.ctx, tx.member = opt.AllowUnsyncedDuplicates, ctx, before.member
	e.core.leave()
	committed, left := false, false // left: the committer may still refer to the transaction
	finish := func() {
		if committed {
			e.core.counters.verdicts.add(&tx.judge.effective)
			e.core.counters.withdrawn.Add(tx.req.writes.unclaimed())
		}
		e.transactor.end(tx)
		tx.judge.watched.end(&e.core.observations, err, committed)
	}
	defer func() { // also if fn panics
		if left {
			go func() {
				defer e.core.leave()
				<-tx.req.ticket.done
				finish()
			}()
			return
		}
		finish()
	}()
	tx.judge.watched = e.core.observations.begin(ctx, e.core.opt.Observer)
	if err := tx.prepare(before); err != nil {
		return err
	}
	if tx.turn, err = e.transactor.awaitTurn(ctx, tx.member); err == nil {
		err = ctx.Err() // it may have ended meanwhile
	}
	if err != nil {
		return err
	}
	if tx.turn != nil || before.onPrefetched != nil {
		e.transactor.history.Restart(&tx.req.reads)
	}
	stop := context.AfterFunc(ctx, func() { e.transactor.end(tx) })
	defer stop()
	err = fn(tx)
	if !stop() {
		err = endedBy(ctx, err)
	}
	if err == nil {
		err = e.transactor.commit(ctx, tx)
		committed, left = err == nil, errors.Is(err, errLeft)
	}
	if !left {
		e.transactor.afterLoss(ctx, tx)
	}
	return err
}

// endedBy returns the error of a transaction that ended with its context while its closure ran and
// returned err. ErrNoTransaction alone would hide the reason.
func endedBy(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return ctx.Err()
	case untrusted.Is(err, ErrNoTransaction):
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// SetHold places a hold, or moves the one of that name: no week at or after that of at is dropped
// until it is moved or released. It is durable on return. A hold on a week that was already dropped
// does not restore it; it keeps the later ones.
func (e *Engine) SetHold(ctx context.Context, name string, at time.Time) error {
	return e.Update(ctx, func(tx *Tx) error { return tx.SetHold(name, at) })
}

// ReleaseHold removes a hold, durably on return. It is no error if there is none.
func (e *Engine) ReleaseHold(ctx context.Context, name string) error {
	return e.Update(ctx, func(tx *Tx) error { return tx.ReleaseHold(name) })
}

// Holds returns all holds in the order of their names.
func (e *Engine) Holds() []Hold { return e.holds.list() }

// HoldsOf returns the holds with the given names, without those that do not exist.
func (e *Engine) HoldsOf(names ...string) []Hold { return e.holds.among(names) }

// prepare does the part of a transaction that needs no turn.
func (tx *Tx) prepare(before *beforeTurn) error {
	if len(before.expected) > 0 {
		if err := tx.prefetch(before.expected); err != nil {
			return err
		}
	}
	if before.onPrefetched == nil {
		return nil
	}
	claimed, err := tx.probablyClaimed()
	if err == nil {
		before.onPrefetched(claimed)
	}
	return err
}
