package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine/limits"
)

// Finish makes the claim Done and stores data with it, durably on return: every Duplicate of the
// event has exactly these bytes in ClaimRecord.Data, up to limits.DataBytes. It returns ErrLeaseLost if
// the lease no longer holds the claim; then nothing is changed, and another caller's result
// remains.
//
// If ctx ends before the change is durable, the error wraps that of ctx and ErrOutcomeUnknown: the
// change may still be made. The same applies to Renew and Release.
func (e *Engine) Finish(ctx context.Context, l *Lease, data []byte) error {
	if err := checkData(data); err != nil {
		return err
	}
	result := string(data)
	return e.changeLeased(ctx, l, func(r *ClaimRecord, _ time.Time) { r.end(Done, result) })
}

// Renew moves the end of the lease to d after now, durably on return, and returns the new end. It
// returns ErrLeaseLost if the lease no longer holds the claim: the caller must stop its work.
func (e *Engine) Renew(ctx context.Context, l *Lease, d time.Duration) (end time.Time, err error) {
	if d < time.Millisecond || d > limits.Lease {
		return time.Time{}, &EventError{"lease", fmt.Sprintf("is %v: give 1ms to %v", d, limits.Lease)}
	}
	var until time.Time // the committer may still write it after an error
	err = e.changeLeased(ctx, l, func(r *ClaimRecord, now time.Time) {
		until = leaseEnd(now, d)
		r.LeaseEnd = until
	})
	if err != nil {
		return time.Time{}, err
	}
	return until, nil
}

// Release releases the claim, durably on return: the next caller can claim the event, with any
// fingerprint. Use it for work that failed and must be retried; store a final failure with Finish.
// It returns ErrLeaseLost if the lease no longer holds the claim.
func (e *Engine) Release(ctx context.Context, l *Lease) error {
	return e.changeLeased(ctx, l, func(r *ClaimRecord, _ time.Time) {
		r.end(Released, "")
		r.Fingerprint = ""
	})
}

// changeLeased changes the record of a leased claim outside a transaction.
func (e *Engine) changeLeased(ctx context.Context, l *Lease, apply func(*ClaimRecord, time.Time)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.core.enter(); err != nil {
		return err
	}
	defer e.core.leave()
	r := e.queue.spares.newOwn()
	c, err := e.finder.leased(&r.set, l)
	if err == nil {
		c.change.apply = apply
		r.set.claims = append(r.set.claims, c)
		err = e.queue.submit(ctx, r)
	}
	if errors.Is(err, errLeft) { // the committer may still refer to r
		return fmt.Errorf("%w; %w", err, ErrOutcomeUnknown)
	}
	e.queue.spares.freeOwn(r)
	if err == nil {
		err = c.change.err
	}
	return err
}

// Finish is Engine.Finish as part of the transaction: if the transaction commits, the claim is Done
// with data; otherwise it stays pending. The claim may have been made before the transaction or in
// it. The transaction ends with ErrLeaseLost if another caller takes the claim over before it
// commits.
func (tx *Tx) Finish(l *Lease, data []byte) error {
	if err := tx.lockStore(); err != nil {
		return err
	}
	defer tx.status.unlockStore()
	if err := cmp.Or(checkData(data), tx.req.checkSize(len(data))); err != nil {
		return err
	}
	i, err := tx.judge.txFinder.holdLeased(l)
	if err != nil {
		return err
	}
	tx.req.claims.alter(i, func(r *ClaimRecord) { r.end(Done, string(data)) })
	return nil
}

// SetData stores data with a claim that this transaction has made: every Duplicate of the event has
// exactly these bytes in ClaimRecord.Data. A pending claim becomes Done. A rollback to an earlier
// savepoint undoes SetData. If the transaction has not claimed the event, or has rolled the claim
// back, SetData returns ErrNotClaimed.
func (tx *Tx) SetData(ev Event, data []byte) error {
	if err := tx.lockStore(); err != nil {
		return err
	}
	defer tx.status.unlockStore()
	if err := cmp.Or(checkData(data), tx.req.checkSize(len(data))); err != nil {
		return err
	}
	ev.Scope = tx.e.core.opt.scope(ev.Scope)
	i, err := tx.judge.txFinder.claimOf(&ev)
	if err != nil {
		return err
	}
	tx.req.claims.alter(i, func(r *ClaimRecord) {
		if r.State == Leased {
			r.end(Done, "")
		}
		r.Data = string(data)
	})
	return nil
}
