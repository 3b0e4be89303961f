package engine

import (
	"errors"
	"fmt"
)

// Errors that a caller can handle. They are wrapped: test them with errors.Is.
var (
	// ErrNoTransaction is returned by the methods of a transaction that is not live: a nil one, or
	// one whose closure has returned. Nothing was read or written.
	ErrNoTransaction = errors.New("hapax: no live transaction: a Tx is valid only inside the closure given to Update")

	// ErrConflict means that a transaction conflicts with another writer. Nothing of it was
	// applied; it may be run again (see Retries). A ConflictError has the key, if it is known.
	ErrConflict = errors.New("hapax: transaction conflict, nothing was applied: run it again")

	// ErrWeekDropped means that a transaction claimed an event in a week that was dropped before it
	// committed. Nothing of it was applied; if it is run again, that event is TooOld.
	ErrWeekDropped = errors.New("hapax: the week of a claim was dropped before the transaction committed, nothing was applied")

	// ErrNotClaimed means that there is no claim for DeadLetter, SetData or driver.Unclaim: the
	// transaction has not claimed the event, has rolled the claim back, or the claim to withdraw is
	// absent. Nothing was changed.
	ErrNotClaimed = errors.New("hapax: there is no such claim: only the transaction that got Claimed may dead-letter the event or set its data, and only a claim with the given record can be withdrawn")

	// ErrLeaseLost means that a lease no longer holds its claim: another caller has taken the claim
	// over, the claim was already finished or released, or its week was dropped. Nothing was
	// changed.
	ErrLeaseLost = errors.New("hapax: the lease no longer holds the claim: another caller may have handled the event, do not answer for it")

	// ErrNotOldestWeek means that DropWeek was called for a week that is neither the oldest retained
	// one nor the oldest one with claims.
	ErrNotOldestWeek = errors.New("hapax: only the oldest retained week may be dropped")

	// ErrDropped means that the oldest retained week cannot be lowered (LowerOldestWeek).
	ErrDropped = errors.New("hapax: a dropped week is not restored")

	// ErrHeld means that a hold keeps the week (see Engine.SetHold).
	ErrHeld = errors.New("hapax: the week is kept by a hold")

	// ErrPlanOutdated means that a scope's claims differ from the plan for its drop, or that holds
	// of the plan were moved or released. Nothing was changed. A scope whose claims change is in
	// use.
	ErrPlanOutdated = errors.New("hapax: the plan is out of date, and nothing was dropped: stop the use of the scope, and make a new plan")

	// ErrRebuilding means that a scan in the background is still rebuilding the requested figures;
	// try again later. If the scan has met damage, the error also wraps the storage.DamageError,
	// and the figures are available once the damage is dropped.
	ErrRebuilding = errors.New("hapax: the filter and its counts are still being rebuilt: try again later")

	// ErrLimit means that a limit of package limits is reached (distinct names, holds, transaction
	// size).
	ErrLimit = errors.New("hapax: limit reached")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("hapax: the engine is closed")

	// ErrStopped means that the store failed and the engine has stopped permanently: it gives no
	// more verdicts and acknowledges nothing. Close it, remove the cause, which the error wraps,
	// and open it again: everything that was acknowledged is stored. The writes of a call that
	// returned ErrStopped are not stored, unless the error also wraps ErrOutcomeUnknown.
	ErrStopped = errors.New("hapax: stopped after a store failure")

	// ErrOutcomeUnknown means that the store failed while it wrote a decided claim, or a whole
	// transaction. It may be durable or not: after a failed sync, only the disk shows which. The
	// error also wraps ErrStopped. Close the engine and open the store again; if the call is
	// repeated, the event is a Duplicate or Claimed. Without ErrStopped, the context of Finish,
	// Renew or Release ended first: look the claim up.
	ErrOutcomeUnknown = errors.New("hapax: the outcome of the commit is unknown: if the store has failed, open it again; then look the claim up")
)

// A ConflictError is the ErrConflict of a transaction because of an application key that it has read, and
// that others have written since.
type ConflictError struct {
	Key []byte // the least one, if there are several
}

func (e *ConflictError) Error() string { return ErrConflict.Error() } // without the key, which may come from a stranger

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflictOver returns the error of a conflict because of a state key, "" for an unknown one.
func conflictOver(key string) error {
	if key == "" || key[0] != stateHost {
		return ErrConflict
	}
	return &ConflictError{[]byte(key[1:])}
}

// errLeft is the error of a request whose caller has left.
var errLeft = errors.New("hapax: the context ended before the store was done")

// An EventError says which field of an event the engine rejects, and why. The event was not judged
// and nothing was written for it.
type EventError struct {
	Field  string // "scope", "id", "time", "topic", ...
	Reason string
}

func (e *EventError) Error() string { return fmt.Sprintf("hapax: event %s %s", e.Field, e.Reason) }

// An ArgumentError says which argument of a call the engine rejects, and why: for example a key, a
// value, a field of a message or the name of a hold. Nothing was written.
type ArgumentError struct {
	Argument string // "application key", "message topic", "hold name", ...
	Reason   string
}

func (e *ArgumentError) Error() string { return fmt.Sprintf("hapax: %s %s", e.Argument, e.Reason) }

// asLimit wraps an error of occ.Reads in ErrLimit.
func asLimit(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrLimit, err)
	}
	return err
}
