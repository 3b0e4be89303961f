package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/untrusted"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// Errors that a caller can act on. They are wrapped: test them with errors.Is.
var (
	// ErrNoDeadLetters is returned by New for a Transactional without dead letters.
	ErrNoDeadLetters = errors.New("hapax: Transactional needs dead letters, or one poison record stops its partition forever: set Route.DeadLetters")

	// ErrNoAttemptLimit is returned by New for a Transactional without a limit of attempts.
	ErrNoAttemptLimit = errors.New("hapax: Transactional needs a limit of attempts: set MaxAttempts to 1 or more")

	// ErrNoHandler is returned by New for a mode without a handler.
	ErrNoHandler = errors.New("hapax: the mode has no handler: give AtMostOnce a function, or set Handle or HandleBatch of Transactional")

	// ErrTwoHandlers is returned by New for a Transactional with both handlers.
	ErrTwoHandlers = errors.New("hapax: Transactional has Handle and HandleBatch: set one of them")

	// ErrOption is returned by New for options that contradict one another or that the adapter sets
	// itself.
	ErrOption = errors.New("hapax: option refused")

	// ErrScopeShared means that another group claims in the same scope of this store.
	ErrScopeShared = errors.New("hapax: another group claims in this scope: choose another Route.Scope, or set Route.SharedScope if each event is to be handled by only one of the two groups")

	// ErrAlreadyRan is returned by a second call of Run.
	ErrAlreadyRan = errors.New("hapax: Run was called before: make one Consumer for each run")

	// ErrFenced means that the partition got another owner before a batch could commit. Nothing of
	// the batch was applied; the new owner handles its records.
	ErrFenced = owner.ErrLost

	// ErrHandlerTimeout is the cause of the end of a handler's context after Route.HandlerTimeout.
	ErrHandlerTimeout = errors.New("hapax: the handler took longer than Route.HandlerTimeout")

	// ErrDeadLetter means that a dead letter could not be published. It is kept in the store and
	// retried; the partition is not read until it is published.
	ErrDeadLetter = errors.New("hapax: a dead letter cannot be published; it is retried: create its topic, or fix the cause that follows")

	// ErrDisconnected means that no broker of Kafka answers, or that the brokers refuse to
	// authenticate the client. The client keeps trying.
	ErrDisconnected = errors.New("hapax: no connection to Kafka")

	// ErrNoProgress means that a partition has had something to do for longer than SilenceTimeout,
	// and its offset has not moved. The error also has what it waits for; it ends by itself when the
	// partition moves.
	ErrNoProgress = errors.New("hapax: the partition makes no progress")

	// ErrSelfConflict means that a record's transaction conflicts again and again, although the other partitions
	// wait for it: what its handler reads through tx is written outside tx each time while the handler runs, by
	// the handler itself or by a part of the application that takes no turns. The error also wraps an
	// engine.ConflictError with the key, if that is one of the application's. The record is tried again after a
	// backoff; it does not become a dead letter.
	ErrSelfConflict = errors.New("hapax: the transaction conflicts with itself: the handler, what it calls or waits for, or another part of the application writes outside tx what the handler has read through tx; read and write the key through tx, or both outside it")

	// ErrSilent means that for longer than SilenceTimeout the broker has not sent the records
	// that it has of a partition, or has not answered. The client keeps retrying.
	ErrSilent = errors.New("hapax: the broker does not answer for the partition: check the broker and its disks")

	// ErrOffsetCommit means that for longer than SilenceTimeout the group's offset of a partition
	// could not be committed with the store's identity. The commit is retried; no record of the
	// partition is handled before it succeeds.
	ErrOffsetCommit = errors.New("hapax: the offset cannot be committed to the group; the partition is not handled until it is: fix the cause that follows")

	// ErrGap means that the client skipped records that are in the log. The partition is read again
	// from the store's offset.
	ErrGap = errors.New("hapax: the client skipped records that are in the log; they are read again: if it repeats, check the network and the broker's memory")
)

// The kinds of disagreement between the offsets of a partition. A *PositionError wraps one of them.
var (
	// ErrBelowLog means that the broker has removed records that were not read yet. Policies:
	// StartOver continues at the log's start; the removed records are lost.
	ErrBelowLog = resume.ErrBelowLog

	// ErrAboveLog means that the store's offset is past the end of the log: the broker lost
	// records, or the log is a different one. Policies: StartOver, TrustKafka.
	ErrAboveLog = resume.ErrAboveLog

	// ErrRecreated means that the topic was deleted and created again. Policies: StartOver,
	// TrustKafka.
	ErrRecreated = resume.ErrRecreated

	// ErrForeignStore means that the partition was processed with another store, or with another
	// incarnation of this one (a restored backup). Claims made there are missing here. Policies:
	// TrustStore, TrustKafka, StartOver.
	ErrForeignStore = resume.ErrForeignStore

	// ErrEmptyStore means that the group has a committed offset, but the store has no offset of the
	// partition: the group was run without Hapax, or the store was lost before its first commit to
	// Kafka (after that it is ErrForeignStore). Policies: TrustKafka, StartOver.
	ErrEmptyStore = resume.ErrEmptyStore

	// ErrKafkaAhead means that an offset that this store committed to Kafka is ahead of the store's
	// own: the store has lost its newest data. Policies: TrustStore, TrustKafka.
	ErrKafkaAhead = resume.ErrKafkaAhead

	// ErrOffsetReset means that another client committed an offset for the group, as an
	// administrator's reset does. Policies: TrustStore, TrustKafka.
	ErrOffsetReset = resume.ErrOffsetReset

	// ErrLogDiverged means that the broker's log no longer contains the records that were read: its
	// leader epochs differ, after an unclean election. Policies: TrustStore, StartOver.
	ErrLogDiverged = resume.ErrLogDiverged

	// ErrModeChanged means that the mode of the route was changed from AtMostOnce to Transactional
	// while the store has claims of unhandled records. The store had failed (Options.ReopenStore), and
	// the process ended before it had handled them. AtMostOnce handles them without claims; for
	// Transactional they would be duplicates. Run the consumer with AtMostOnce until these records
	// are handled, then change the mode. Policies: TrustStore skips them.
	ErrModeChanged = resume.ErrModeChanged

	// ErrPartitionsChanged means that a topic of a pinned consumer (Pinned), or one with a changelog
	// (Options.Changelog), has another number of partitions than before: partitions were added, or the
	// topic was created again.
	// Producers that choose the partition by the record's key now send the copies of an earlier event
	// to another partition, which may have another store: it would handle them again, and
	// begin the state of their key anew. A number cannot be lowered, so choose it large enough at
	// first. Ways out: create a topic with the new number of partitions, read the old one to its end,
	// and start every consumer with a new store and a new group on the new topic once no copies of
	// earlier events are sent any more; or, if the partition of an event does not depend on the number
	// of partitions, or handling copies of earlier events again does no harm, the policy TrustStore,
	// for every consumer; a changelog needs as many partitions as its source. Policies: TrustStore accepts
	// the number.
	ErrPartitionsChanged = resume.ErrPartitionsChanged
)

// A PositionError is the error of a partition that is not read because its offsets in the store and
// in Kafka do not agree. Kind is one of the errors above; their documentation lists the policies,
// which Options.Recovery chooses.
type PositionError struct {
	Topic     string
	Partition int32
	Kind      error
	Store     int64 // next offset in the store, -1 if it has none
	Committed int64 // committed in Kafka, -1 if nothing is
	Start     int64 // of the log
	End       int64 // of the log, one after its last record
	Metadata  string
}

func (e *PositionError) Error() string {
	return fmt.Sprintf("%v: %s/%d: store at %d, Kafka's commit at %d %q, log from %d to %d; choose a policy in Options.Recovery, or call Consumer.AdoptOffset once: %s",
		e.Kind, e.Topic, e.Partition, e.Store, e.Committed, e.Metadata, e.Start, e.End, waysOf(e.Kind))
}

func (e *PositionError) Unwrap() error { return e.Kind }

// kindOf returns the kind of a PositionError, nil for any other error.
func kindOf(err error) error {
	if at := (*PositionError)(nil); errors.As(err, &at) {
		return at.Kind
	}
	return nil
}

// A StopError is the reason for which a partition is not read while others are.
type StopError struct {
	Topic     string
	Partition int32
	Reason    string // a short name for metrics, such as "position", "dead_letter"
	Err       error
}

func (e *StopError) Error() string {
	return fmt.Sprintf("hapax: %s/%d stopped (%s): %v", e.Topic, e.Partition, e.Reason, e.Err)
}

func (e *StopError) Unwrap() error { return e.Err }

// copy returns a copy for the application.
func (e *StopError) copy() *StopError {
	c := *e
	if at, ok := any(e.Err).(*PositionError); ok {
		own := *at
		c.Err = &own
	}
	return &c
}

// isEnd reports whether an error only means that the assignment is over.
func isEnd(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrFenced) }

// Permanent marks a handler's error as permanent: the record becomes a dead letter at once, without
// further attempts.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether Permanent has marked err, or an error that err wraps.
func IsPermanent(err error) bool { return errors.As(err, new(*permanentError)) }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Transient marks an error as independent of the record: for example, a service that the handler or
// identify.Rules.Payload needs is down. The partition stops with the reason "transient" and is
// retried after a backoff (Options.MaxBackoff). No attempt is counted, and the record does
// not become a dead letter. engine.ErrOutboxFull counts as marked. A handler of AtMostOnce has no second attempt: its event is lost and
// counted as with any other error. With AtMostOnce, the mark only has an effect in
// identify.Rules.Payload.
func Transient(err error) error {
	if err == nil {
		return nil
	}
	return &transientError{err}
}

// IsTransient reports whether Transient has marked err, or an error that err wraps. It is also true of
// engine.ErrOutboxFull, because the outbox is full for all records alike.
func IsTransient(err error) bool {
	return err != nil && (errors.As(err, new(*transientError)) || errors.Is(err, engine.ErrOutboxFull))
}

type transientError struct{ err error }

func (e *transientError) Error() string { return e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

// A PanicError is the error of a handler that panicked, or whose error panicked in Error or Unwrap.
// It counts as a failed attempt.
type PanicError struct {
	Value any
	Stack []byte

	text string // of Value, at the time of the panic
}

func newPanicError(value any) *PanicError {
	return &PanicError{value, debug.Stack(), untrusted.Text(fmt.Sprintf("hapax: the handler panicked: %v", value))}
}

func (e *PanicError) Error() string {
	if e.text == "" { // the application has made it
		return newPanicError(e.Value).text
	}
	return e.text
}

var errNilEngine = fmt.Errorf("%w: the engine is nil: open one with engine.Open, and check its error", ErrOption)
