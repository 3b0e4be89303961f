package kafkaadapter

import (
	"context"
	"errors"
	"time"
)

// FailedAt marks an error of Transactional.HandleBatch with the index of the first record that
// failed: the records before it are handled again as a batch and commit, and this record alone has
// failed an attempt. Permanent and Transient may mark err as well.
func FailedAt(index int, err error) error {
	if err == nil {
		return nil
	}
	return &failedAtError{index, err}
}

type failedAtError struct {
	index int
	err   error
}

func (e *failedAtError) Error() string { return e.err.Error() }
func (e *failedAtError) Unwrap() error { return e.err }

// A blame is why a record cannot commit, found out in a transaction that was undone. In the next
// one the record counts as failed, and its handler is not called.
type blame struct {
	offset int64
	err    error
}

// A batchFailure says that HandleBatch has failed. It undoes the transaction, and has no Unwrap:
// what it is due to says nothing about the transaction.
type batchFailure struct {
	err    error
	offset int64 // of the record that failed, -1 if that is not known
}

func (e *batchFailure) Error() string { return e.err.Error() }

// handleGroup runs HandleBatch for the records that the batch has claimed.
func (b *batch) handleGroup() error {
	p, group := b.p, b.group
	if len(group) == 0 {
		return nil
	}
	began := time.Since(b.began)
	err := p.call(p.ctx, group[0].Record, 0, func(ctx context.Context) error {
		return p.route.Mode.(Transactional).HandleBatch(ctx, b.tx, group)
	})
	b.handling += time.Since(b.began) - began
	switch {
	case err == nil:
		return nil
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	}
	if _, err := b.tx.Savepoint(); err != nil {
		return err // this transaction is in conflict, or the engine has ended: not the handler's fault
	}
	failure := &batchFailure{err, -1}
	at := (*failedAtError)(nil)
	switch {
	case errors.As(err, &at) && at.index >= 0 && at.index < len(group):
		failure.offset = group[at.index].Offset
	case len(group) == 1, isTransient(err):
		failure.offset = group[0].Offset
	}
	return failure
}

// batchFailed notes what a batch of n records shows about the record that failed. As long as that
// is not known, batches are halved: the record is among the next p.suspects.
func (p *partition) batchFailed(n int, failure *batchFailure) {
	if failure.offset >= 0 {
		p.blame, p.suspects = &blame{failure.offset, failure.err}, 0
		return
	}
	if p.suspects == 0 {
		p.log.Warn("a batch failed; it is halved until the record is found", "offset", p.taken[0].Offset, "records", n, "error", failure.err,
			"hint", "return kafkaadapter.FailedAt from HandleBatch to name the record")
	}
	p.suspects = n
}
