package kafkaadapter

import (
	"errors"
	"fmt"
)

// Errors that a caller can act on. They are wrapped: test them with errors.Is.
var (
	// ErrNoDeadLetters is returned by New for a Transactional without dead letters.
	ErrNoDeadLetters = errors.New("hapax: Transactional needs dead letters, or one poison record stops its partition forever: set Route.DeadLetters")

	// ErrNoAttemptLimit is returned by New for a Transactional without a limit of attempts.
	ErrNoAttemptLimit = errors.New("hapax: Transactional needs a limit of attempts: set MaxAttempts to 1 or more")

	// ErrNoHandler is returned by New for a mode without a handler.
	ErrNoHandler = errors.New("hapax: the mode has no handler: set Handle, or HandleBatch of Transactional")

	// ErrTwoHandlers is returned by New for a Transactional with both handlers.
	ErrTwoHandlers = errors.New("hapax: Transactional has Handle and HandleBatch: set one of them")

	// ErrOption is returned by New for options that contradict one another or that the adapter sets
	// itself.
	ErrOption = errors.New("hapax: option refused")

	// ErrScopeShared says that another group claims in the same scope of this store.
	ErrScopeShared = errors.New("hapax: another group claims in this scope: choose another Route.Scope, or set Route.SharedScope if the two groups are to handle each event once between them")

	// ErrAlreadyRan is returned by a second call of Run.
	ErrAlreadyRan = errors.New("hapax: Run was called before: make one Consumer for each run")

	// ErrFenced says that a partition went to another owner before the work on it could commit.
	// Nothing of that work was applied; the new owner does it.
	ErrFenced = errors.New("hapax: the partition has another owner by now")

	// ErrHandlerTimeout is the cause of the end of a handler's context after Route.HandlerTimeout.
	ErrHandlerTimeout = errors.New("hapax: the handler took longer than Route.HandlerTimeout")

	// ErrDeadLetter says that a dead letter could not be published. It is kept in the store and
	// tried again; the partition is not read on until the broker has it.
	ErrDeadLetter = errors.New("hapax: a dead letter cannot be published: create its topic, or fix the cause that follows; it is tried again")

	// ErrSilent says that the broker has records of a partition and does not send them, or does not
	// say whether it has any, for longer than Timeouts.Silence. The client continues to ask.
	ErrSilent = errors.New("hapax: the broker does not answer for the partition: look at the broker and its disks")

	// ErrUnsigned says that the group's offset of a partition cannot be committed with the store's
	// identity, for longer than Timeouts.Silence. Nothing of the partition is handled before that;
	// it is tried again.
	ErrUnsigned = errors.New("hapax: the offset cannot be committed to the group, and the partition is not handled before that: fix the cause that follows")

	// ErrGap says that records are missing between those that were fetched, although the log has
	// them. The partition is read again from the store's offset.
	ErrGap = errors.New("hapax: the client skipped records that the log has: if it happens again, look for damage on the network or in the broker's memory")
)

// What can be wrong with the position of a partition. A *PositionError wraps one of them.
var (
	// ErrBelowLog says that the broker has removed records that were not read yet.
	// Policies: StartOver continues at the log's start; what was removed is lost.
	ErrBelowLog = errors.New("hapax: records were removed before they were read")

	// ErrAboveLog says that the store has read further than the log goes: the broker lost records,
	// or the topic's log is another one. Policies: StartOver, TrustKafka.
	ErrAboveLog = errors.New("hapax: the store is ahead of the log's end")

	// ErrRecreated says that the topic was deleted and created again. Policies: StartOver,
	// TrustKafka.
	ErrRecreated = errors.New("hapax: the topic was created again since the store read it")

	// ErrForeignStore says that another store processed the partition, or a later or earlier life
	// of this one (a restored backup). What that one claimed is not here. Policies: TrustStore,
	// TrustKafka, StartOver.
	ErrForeignStore = errors.New("hapax: another store processed the partition: members of a group that exchange partitions have to share one store")

	// ErrEmptyStore says that the group has a committed offset and the store knows nothing of the
	// partition: a group that was run without Hapax, or a store that was lost before it had
	// committed (later it is ErrForeignStore). Policies: TrustKafka, StartOver.
	ErrEmptyStore = errors.New("hapax: the group has committed offsets, and the store knows nothing of the partition")

	// ErrKafkaAhead says that the group's committed offset, committed by this very store, is ahead
	// of the store's: the store has lost its newest part. Policies: TrustStore, TrustKafka.
	ErrKafkaAhead = errors.New("hapax: Kafka's committed offset is ahead of the store that committed it: the store lost its newest part")

	// ErrOffsetReset says that somebody else committed another offset for the group, as an
	// administrator's reset does. Policies: TrustStore, TrustKafka.
	ErrOffsetReset = errors.New("hapax: the group's committed offset was moved by another client")

	// ErrLogDiverged says that the broker's log no longer has what was read (its leader epochs
	// disagree, after an unclean election). Policies: TrustStore, StartOver.
	ErrLogDiverged = errors.New("hapax: the log is not the one that was read")

	// ErrModeChanged says that the mode of the route was AtMostOnce before and is Transactional
	// now, while the store has claims of records that were not handled: the store failed
	// (Options.FailOpen), and the process ended before it had handled them. AtMostOnce handles them
	// without claims; for Transactional they are duplicates. Run the consumer with AtMostOnce until
	// the partition has passed them, then change the mode. Policies: TrustStore skips them.
	ErrModeChanged = errors.New("hapax: the mode was changed to Transactional before AtMostOnce had handled all records that it had claimed: run AtMostOnce once more")
)

// A PositionError says why a partition is not read: its position in the store and in Kafka do not
// agree. Kind is one of the errors above, whose comment names the policies; each is chosen in
// Options.Recovery.
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

// A StopError says why a partition is not read any further while others are.
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

// Permanent marks an error of a handler as one that no further attempt will fix: the record becomes
// a dead letter at once.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Transient marks an error as one that says nothing about the record: a service that the handler or
// identify.Rules.Payload needs is away. The partition is stopped for the reason "transient" and
// retried after a backoff (Options.Timeouts.Backoff). No attempt is counted, and the record does
// not become a dead letter. An AtMostOnce handler has no second attempt: its event is lost and
// counted as with any other error, and the mark has an effect in identify.Rules.Payload only.
func Transient(err error) error {
	if err == nil {
		return nil
	}
	return &transientError{err}
}

type transientError struct{ err error }

func (e *transientError) Error() string { return e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

func isTransient(err error) bool { return errors.As(err, new(*transientError)) }

// A PanicError is what a handler's panic counts as: a failed attempt.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("hapax: the handler panicked: %v", e.Value) }
