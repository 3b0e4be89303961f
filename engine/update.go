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
	// Retries is how often Update runs its closure again after a conflict with another writer
	// (ErrConflict), each time as soon as the conflicting write is visible. The closure must be
	// safe to run again.
	Retries int

	// AllowUnsyncedDuplicates lets a closure get Duplicate before the claim on which the verdict
	// depends is durable, which saves a wait for each such verdict. The claim is durable when
	// Update returns nil, because the transaction's own batch follows it. An event that another
	// transaction is committing is also a Duplicate, once that commit is visible, instead of
	// InFlight. The closure must not act on a Duplicate outside the transaction, for example
	// acknowledge the event.
	AllowUnsyncedDuplicates bool
}

// Retries returns UpdateOptions with n retries.
func Retries(n int) UpdateOptions { return UpdateOptions{Retries: n} }

// with returns o with the fields that are set in other.
func (o UpdateOptions) with(other UpdateOptions) UpdateOptions {
	o.Retries = cmp.Or(other.Retries, o.Retries)
	o.AllowUnsyncedDuplicates = o.AllowUnsyncedDuplicates || other.AllowUnsyncedDuplicates
	return o
}

// Update runs fn in a transaction. The claims, reads and writes of fn through tx commit in one
// batch of the store, all or none of them. When Update returns nil, the batch is durable. If Update
// returns an error, or fn panics, nothing is applied and the events can be claimed again (at least
// once on failure: the application needs a limit of attempts and a place for events that never
// succeed). The one exception is an error that wraps ErrOutcomeUnknown: the store failed while it
// wrote the batch, and all or none of it may be durable. Open the store again, and look up a claim
// or a key of the transaction.
//
// A transaction is bounded by limits.TxBytes, limits.TxClaims, limits.TxReadBytes and
// limits.TxScans; beyond these its methods return ErrLimit. A transaction with reads fails with
// ErrConflict if others write more than 64 MiB of keys while it is open.
//
// Transactions are serializable over claims, application keys and offsets, absent ones included.
// There is one exception: Pending, and Duplicate of a claim that is withdrawn later, are verdicts
// as of the time at which they are returned, and another caller may finish or withdraw that claim
// before the transaction commits. After a conflict, nothing is applied, and Update returns
// ErrConflict as soon as the conflicting writes are visible to a new transaction. No verdict waits
// for an open transaction, so transactions cannot block each other; only driver.UpdateOptions.Lane
// makes them wait before they begin, for a bounded time. fn runs under no lock, and may use the
// engine in addition to tx: an at-most-once claim made inside it commits by itself.
//
// Several options are combined: for each field, the last value that is not zero counts.
//
// If ctx ends before the commit is decided, nothing is applied. After the decision, Update waits
// for the outcome even if the store stalls: a decided transaction cannot be withdrawn, and a caller
// without its outcome could neither repeat nor abandon it. If ctx ends while fn runs, the
// transaction ends at once: others can claim its events, and its methods return ErrNoTransaction
// from then on. If fn returns that error or nil, Update returns the context's error.
func (e *Engine) Update(ctx context.Context, fn func(tx *Tx) error, options ...UpdateOptions) error {
	var opt UpdateOptions
	for _, o := range options {
		opt = opt.with(o)
	}
	return e.update(ctx, fn, opt, beforeTurn{})
}

// A beforeTurn has the driver.UpdateOptions for the work before a transaction's turn.
type beforeTurn struct {
	member       *lane.Member // nil if the transaction is not in the lane
	expected     []Event
	onPrefetched func(claimed []bool)
}

func (e *Engine) update(ctx context.Context, fn func(tx *Tx) error, opt UpdateOptions, before beforeTurn) error {
	for attempt := 0; ; attempt++ {
		err := e.updateOnce(ctx, fn, &opt, &before)
		if !untrusted.Is(err, ErrConflict) || attempt >= opt.Retries { // err may come from the closure
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
	committed, left := false, false // left means that the committer may still refer to the transaction
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
		err = ctx.Err() // ctx may have ended meanwhile
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

// endedBy returns the error of Update if ctx ended while the closure ran; err is the closure's
// error. ErrNoTransaction alone would hide the reason.
func endedBy(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return ctx.Err()
	case untrusted.Is(err, ErrNoTransaction):
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// SetHold places a hold, or moves the hold with that name, durably on return: the week of at and
// later weeks are not dropped until the hold is moved or released. A hold on a week that was
// already dropped does not restore it, but keeps the later ones.
func (e *Engine) SetHold(ctx context.Context, name string, at time.Time) error {
	return e.Update(ctx, func(tx *Tx) error { return tx.SetHold(name, at) })
}

// ReleaseHold removes a hold, if it exists, durably on return.
func (e *Engine) ReleaseHold(ctx context.Context, name string) error {
	return e.Update(ctx, func(tx *Tx) error { return tx.ReleaseHold(name) })
}

// Holds returns all holds in the order of their names.
func (e *Engine) Holds() []Hold { return e.holds.list() }

// HoldsOf returns the existing holds among the given names, sorted by name.
func (e *Engine) HoldsOf(names ...string) []Hold { return e.holds.among(names) }

// prepare does the work of a transaction before its turn.
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
