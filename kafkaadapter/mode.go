package kafkaadapter

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// A Mode is a handler together with its guarantee: AtMostOnce or Transactional. There are no
// others.
type Mode interface {
	check() error
}

// AtMostOnce handles each event at most once. The claim and the next offset commit first, then the
// handler runs. An event is lost if its handler fails, panics or is cut off, if the process dies,
// or if the partition is lost to another member. Losses are counted (dedup_kafka_lost_total) and
// logged, except for those that a dying process causes: at most one batch for each partition. When
// Run ends or a partition is revoked, events whose handlers have not begun are not lost: their
// claims are withdrawn. Use it for work that may be lost, such as push notifications.
//
// The context of a call ends when its partition was revoked or Run ended, and Options.DrainTimeout has
// passed. Calls for one partition run one at a time, in order, unless Route.Concurrency lets them run in
// parallel.
type AtMostOnce func(ctx context.Context, rec *Record) error

// Transactional handles each event so that its effect in the store happens exactly once. The claim,
// the writes of the handler through tx, and the next offset commit together or not at all. A
// handler that fails runs again after a backoff, up to MaxAttempts times; then the record becomes a
// dead letter. Effects outside the store happen as often as the handler runs.
type Transactional struct {
	// Handle handles a record inside the transaction of its batch, or in a part of it with
	// Route.Concurrency. Set it or HandleBatch. A failure rolls back only the writes for this
	// record. Handle may run again after a conflict, a failure or a crash. See AtMostOnce
	// for the context and the order. Do not use tx after Handle has returned, for example in a
	// goroutine: such writes can become part of the next record, or return ErrNoTransaction.
	// What the adapter owns, tx refuses to change, with an engine.ArgumentError: application keys that
	// begin with KeyPrefix, the offsets of the group, the holds of its assigned partitions, the claim on
	// the record's event (so do not call tx.TryClaim for it: it is claimed), and what was done before the
	// call (a savepoint of an earlier record). SetData may add data to the claim. Verdicts returned by tx are
	// final when it commits: see engine.UpdateOptions.AllowUnsyncedDuplicates.
	Handle func(ctx context.Context, tx *engine.Tx, rec *Record) error
	// HandleBatch is the alternative to Handle: it handles the claimed records of a batch together,
	// in order, at most MaxBatch of them. Duplicates and dead letters are not among them.
	// A failure rolls back the whole batch. If the error is marked by FailedAt, the records before
	// the named one are handled again and commit, and only the named record has one more failed
	// attempt. Otherwise the batch is halved until the failing record is found. A record that has
	// failed before, and each record after an unclean end of the process, is handled alone. An
	// error marked by Transient but not by FailedAt makes the whole batch wait. The context does
	// not contain the trace context of a record.
	HandleBatch func(ctx context.Context, tx *engine.Tx, records []*Record) error
	// Decode converts a record for the handler; Record.Decoded is the result. It is optional.
	// Use it for work that depends only on the record: it is called for a few dozen records at once,
	// which is faster than between the handlers, and partitions whose handlers read and write the
	// same keys, and therefore take turns (driver.LaneMember), decode in parallel before the turn.
	// Decode is omitted for most duplicates unless Route.Window is set, but may be called for one,
	// and again for another attempt or after a conflict. Calls for one partition run one at a time unless
	// Route.Concurrency is set. An error or a panic counts as one of the handler; Permanent and
	// Transient may mark it, and Route.HandlerTimeout bounds each call.
	Decode func(ctx context.Context, rec *kgo.Record) (any, error)
	// MaxAttempts is the number of attempts for each record, 1 or more. A process that dies in a
	// handler counts as an attempt; one that dies while the partition waits does not. Required.
	MaxAttempts int
}

// checkMode rejects invalid modes. A pointer to a mode also implements Mode, but is not supported.
func checkMode(m Mode) error {
	switch m.(type) {
	case AtMostOnce, Transactional:
		return m.check()
	}
	return fmt.Errorf("%w: it is a %T: use an AtMostOnce or a Transactional value, not a pointer", ErrOption, m)
}

func (m AtMostOnce) check() error {
	if m == nil {
		return ErrNoHandler
	}
	return nil
}

func (m Transactional) check() error {
	switch {
	case m.Handle == nil && m.HandleBatch == nil:
		return ErrNoHandler
	case m.Handle != nil && m.HandleBatch != nil:
		return ErrTwoHandlers
	case m.MaxAttempts < 1:
		return ErrNoAttemptLimit
	}
	return nil
}
