package kafkaadapter

import (
	"context"
	"errors"
	"time"
)

// FailedAt marks an error of Transactional.HandleBatch with the index of the first record that
// failed. The records before it are handled again as a batch and commit, and only this record has
// another failed attempt. Permanent and Transient may also mark err.
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

// A batchFailure is the error of a failed HandleBatch. It rolls back the transaction. It has no
// Unwrap, because its cause says nothing about the transaction.
type batchFailure struct {
	err    error
	offset int64 // offset of the failed record, -1 if it is unknown
}

func (e *batchFailure) Error() string { return e.err.Error() }

// handleGroup runs HandleBatch for the records that the batch has claimed.
func (b *batch) handleGroup() error {
	p, group := b.p, b.group
	if len(group) == 0 {
		return nil
	}
	recs := make([]*Record, len(group))
	for i, d := range group {
		recs[i] = p.partition.handlers.hands.give(d)
	}
	began := time.Since(b.began)
	err := p.partition.handlers.call(p.partition.ctx, group[0].Record.Offset, 0, func(ctx context.Context) error {
		return p.partition.route.Mode.(Transactional).HandleBatch(ctx, b.tx, recs)
	})
	b.handling += time.Since(b.began) - began
	switch {
	case err == nil:
		return nil
	case p.partition.ctx.Err() != nil:
		return context.Cause(p.partition.ctx)
	}
	if _, err := as(b.tx).Savepoint(); err != nil {
		return err // a conflict or the end of the engine, not caused by the handler
	}
	failure := &batchFailure{err, -1}
	at := (*failedAtError)(nil)
	switch {
	case errors.As(err, &at) && at.index >= 0 && at.index < len(group):
		failure.offset = group[at.index].Record.Offset
	case len(group) == 1, IsTransient(err):
		failure.offset = group[0].Record.Offset
	}
	return failure
}
