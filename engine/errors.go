package engine

import (
	"errors"
	"fmt"
)

// Errors that a caller can act on. They are wrapped: test them with errors.Is.
var (
	// ErrNoDefaultScope is returned by the short forms when Options.DefaultScope is empty.
	ErrNoDefaultScope = errors.New("hapax: no default scope is configured: set Options.DefaultScope, or use the form that takes Event.Scope")

	// ErrNoTransaction is returned by the methods of a transaction that is not live: a nil one, or one whose closure
	// has returned. Nothing was read or written.
	ErrNoTransaction = errors.New("hapax: no live transaction: a Tx is valid only inside the closure given to Update")

	// ErrConflict says that a transaction lost against another writer. Nothing of it was applied; it may be run again
	// (see Retries).
	ErrConflict = errors.New("hapax: transaction conflict, nothing was applied: run it again")

	// ErrWeekDropped says that a transaction claimed an event in a week that was dropped before it committed. Nothing
	// of it was applied; run again, that claim is TooOld.
	ErrWeekDropped = errors.New("hapax: a week this transaction claimed in was dropped before it committed, nothing was applied")

	// ErrNotClaimed says that a transaction was to dead-letter an event that it has not claimed, or whose claim it has
	// rolled back. Nothing was changed.
	ErrNotClaimed = errors.New("hapax: this transaction has not claimed the event: only the one that was told Claimed may dead-letter it")

	// ErrNotOldestWeek says that a week other than the oldest kept one was to be dropped.
	ErrNotOldestWeek = errors.New("hapax: only the oldest kept week may be dropped")

	// ErrHeld says that a hold keeps the week (see Engine.SetHold).
	ErrHeld = errors.New("hapax: the week is kept by a hold")

	// ErrRebuilding says that the figures asked for are still being rebuilt by a scan behind; ask again later.
	ErrRebuilding = errors.New("hapax: the filter and its counts are still being rebuilt: ask again later")

	// ErrLimit says that a stated cap (distinct names, holds, transaction size) is reached.
	ErrLimit = errors.New("hapax: limit reached")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("hapax: the engine is closed")

	// ErrStopped says that the store failed and the engine has stopped for good: it gives no more verdicts and
	// acknowledges nothing. Close it, mend the cause (it is wrapped) and open again: everything that was
	// acknowledged is there.
	ErrStopped = errors.New("hapax: stopped after a store failure")

	// ErrDamaged says that bytes of the store are not what was written. No byte was changed by finding out.
	ErrDamaged = errors.New("hapax: the store is damaged: restore a backup, or start with an empty directory and decide which events to process again")

	// ErrNewerFormat says that a newer build wrote the store. No byte was changed.
	ErrNewerFormat = errors.New("hapax: the store was written in a newer format: use the newer build")

	// ErrLocked says that another engine, in this process or another one, has the directory open.
	ErrLocked = errors.New("hapax: the directory is in use by another process or engine: one writer per directory")

	// ErrForeign says that the directory or file is not a store of the kind that was asked for.
	ErrForeign = errors.New("hapax: not a store of this kind")
)

// An EventError says which field of an event the engine refuses, and why. The event was not judged and nothing was
// written for it.
type EventError struct {
	Field  string // "scope", "id", "time", "topic", ...
	Reason string
}

func (e *EventError) Error() string { return fmt.Sprintf("hapax: event %s %s", e.Field, e.Reason) }

// A KeyError says why a host key, a value, an offset's position or a hold's name is refused. Nothing was written.
type KeyError struct {
	What   string // "host key", "hold name", ...
	Reason string
}

func (e *KeyError) Error() string { return fmt.Sprintf("hapax: %s %s", e.What, e.Reason) }
