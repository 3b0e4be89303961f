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
// Run ends or a partition is given away, events whose handlers have not begun are not lost: their
// claims are taken back. Use it for work that may be lost, such as push notifications.
type AtMostOnce struct {
	// Handle handles a record. Its context ends when the partition is taken away or when the
	// consumer shuts down and its shutdown timeout is over. Calls for one partition come one after
	// the other, in order, unless Route.Concurrency lets them run in parallel.
	Handle func(ctx context.Context, rec *Record) error
}

// Transactional handles each event so that its effect in the store happens exactly once. The claim,
// the writes of the handler through tx, and the next offset commit together or not at all. A
// handler that fails runs again after a backoff, up to MaxAttempts times; then the record becomes a
// dead letter. Effects outside the store happen as often as the handler runs.
type Transactional struct {
	// Handle handles a record inside the transaction of its batch, or in a part of it with
	// Route.Concurrency. Set it or HandleBatch. A failure undoes the writes for this record only.
	// It may run again after a conflict, a failure or a crash. See AtMostOnce.Handle for the
	// context and the order. Tx must not be used after Handle has returned, as in a goroutine that
	// it has left behind: what is written then can become part of the next record, or is
	// ErrNoTransaction. Application keys that begin with KeyPrefix belong to the adapter. Verdicts
	// that tx returns are final when it commits: see engine.DurableAtCommit.
	Handle func(ctx context.Context, tx *engine.Tx, rec *Record) error
	// HandleBatch is the alternative to Handle: it handles the claimed records of a batch together,
	// in order, at most Batching.MaxBatch of them. Duplicates and dead letters are not among them.
	// A failure undoes the whole batch. If the error is marked by FailedAt, the records before that
	// one are handled again and commit, and that one alone has failed an attempt. Otherwise the
	// batch is halved until the record is found. A record that has failed before, and each record
	// after an unclean end of the process, is handled alone. An error that is marked by Transient
	// and not by FailedAt makes the whole batch wait. The context has no trace of a record.
	HandleBatch func(ctx context.Context, tx *engine.Tx, records []*Record) error
	// Decode makes of a record what the handler needs of it, such as its decoded value, which
	// Record.Decoded then returns. Work that depends on nothing but the record is best done here:
	// partitions whose handlers read and write the same keys take turns (engine.LaneMember), and
	// their records are decoded before the turn, in parallel. It may be called for a record that
	// then proves to be a duplicate, and again before another attempt or after a conflict, and
	// never in parallel for one partition unless Route.Concurrency lets handlers run so. An error
	// or a panic counts as that of the handler, in its place; Permanent and Transient may mark it,
	// and Route.HandlerTimeout bounds each call. Optional.
	Decode func(ctx context.Context, rec *kgo.Record) (any, error)
	// MaxAttempts is the number of attempts for each record, 1 or more. A process that dies in a
	// handler counts as an attempt. Required.
	MaxAttempts int
}

// checkMode refuses a mode that cannot work. A pointer to a mode has the methods of one and is
// none.
func checkMode(m Mode) error {
	switch m.(type) {
	case AtMostOnce, Transactional:
		return m.check()
	}
	return fmt.Errorf("%w: it is a %T: give an AtMostOnce or a Transactional itself, not a pointer", ErrOption, m)
}

func (m AtMostOnce) check() error {
	if m.Handle == nil {
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
