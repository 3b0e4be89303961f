package kafkaadapter

import (
	"errors"
	"fmt"
)

// Errors that a caller can act on. They are wrapped: test them with errors.Is.
var (
	// ErrNoDeadLetters is returned by New for a WithWork without dead letters.
	ErrNoDeadLetters = errors.New("hapax: a handler with the work needs dead letters: without them one poison message stops its partition for ever; set WithWork.DeadLetters")

	// ErrNoAttemptLimit is returned by New for a WithWork without a limit of attempts.
	ErrNoAttemptLimit = errors.New("hapax: a handler with the work needs a limit of attempts: set WithWork.MaxAttempts to 1 or more")

	// ErrNoHandler is returned by New for a mode whose Handle is nil.
	ErrNoHandler = errors.New("hapax: the mode has no handler: set Handle")

	// ErrOption is returned by New for options that contradict one another or that the adapter sets itself.
	ErrOption = errors.New("hapax: option refused")

	// ErrScopeShared says that another group claims in the same scope of this store.
	ErrScopeShared = errors.New("hapax: another group claims in this scope: choose another Options.Scope, or set Options.SharedScope if the two groups are to handle each event once between them")

	// ErrRunning is returned by a second call of Run.
	ErrRunning = errors.New("hapax: Run was called before: make one Consumer for each run")

	// ErrFenced says that a partition went to another owner before the work on it could commit. Nothing of that work
	// was applied; the new owner does it.
	ErrFenced = errors.New("hapax: the partition has another owner by now")

	// ErrDeadLetter says that a dead letter could not be published. It is kept in the store and tried again; the
	// partition is not read on until the broker has it.
	ErrDeadLetter = errors.New("hapax: a dead letter cannot be published: create its topic, or mend what the cause says; it is tried again")

	// ErrUndecodable says that a record has no usable id or time and no dead letters are configured.
	ErrUndecodable = errors.New("hapax: a record cannot be told from others: set OwnCommit.DeadLetters, or mend Options.Identify")
)

// What can be wrong with the position of a partition. A *PositionError wraps one of them.
var (
	// ErrBelowLog says that the broker has removed records that were not read yet.
	// Ways on: StartOver goes on at the log's start; what was removed is lost.
	ErrBelowLog = errors.New("hapax: records were removed before they were read")

	// ErrAboveLog says that the store has read further than the log goes: the broker lost records, or the topic's log is
	// another one. Ways on: StartOver, TrustKafka.
	ErrAboveLog = errors.New("hapax: the store is ahead of the log's end")

	// ErrRecreated says that the topic was deleted and created again. Ways on: StartOver, TrustKafka.
	ErrRecreated = errors.New("hapax: the topic was created again since the store read it")

	// ErrForeignStore says that another store processed the partition, or a later or earlier life of this one (a
	// restored backup). What that one claimed is not here. Ways on: TrustStore, TrustKafka, StartOver.
	ErrForeignStore = errors.New("hapax: another store processed the partition: members of a group that exchange partitions have to share one store")

	// ErrEmptyStore says that the group has a committed offset and the store knows nothing of the partition: a group that
	// was run without Hapax, or a store that was lost before it had committed (later it is ErrForeignStore).
	// Ways on: TrustKafka, StartOver.
	ErrEmptyStore = errors.New("hapax: the group has committed offsets, and the store knows nothing of the partition")

	// ErrKafkaAhead says that the group's committed offset, committed by this very store, is ahead of the store's: the
	// store has lost its newest part. Ways on: TrustStore, TrustKafka.
	ErrKafkaAhead = errors.New("hapax: Kafka's committed offset is ahead of the store that committed it: the store lost its newest part")

	// ErrMoved says that somebody else committed another offset for the group, as an administrator's reset does.
	// Ways on: TrustStore, TrustKafka.
	ErrMoved = errors.New("hapax: the group's committed offset was moved by somebody else")

	// ErrLogDiverged says that the broker's log no longer has what was read (its leader epochs disagree, after an unclean
	// election). Ways on: TrustStore, StartOver.
	ErrLogDiverged = errors.New("hapax: the log is not the one that was read")
)

// A PositionError says why a partition is not read: its position in the store and in Kafka do not agree. Kind is one of
// the errors above, whose comment names the ways on; each is chosen in Options.Positions.
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
	return fmt.Sprintf("%v: %s/%d: store at %d, Kafka's commit at %d %q, log from %d to %d; the ways on are fields of Options.Positions: %s",
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

// Permanent marks an error of a handler as one that no further attempt will mend: the record becomes a dead letter at
// once.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// A PanicError is what a handler's panic counts as: a failed attempt.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("hapax: the handler panicked: %v", e.Value) }
