package storage

import "errors"

// Errors that a store returns. They are wrapped: test them with errors.Is.
var (
	// ErrDamaged means that the store does not contain the data that was written. Nothing was
	// changed.
	ErrDamaged = errors.New("hapax: the store is damaged: restore a backup, or start with an empty directory and decide which events to process again")

	// ErrNewerFormat means that a newer build wrote the store. No byte was changed.
	ErrNewerFormat = errors.New("hapax: the store was written in a newer format: use the newer build")

	// ErrLocked means that the directory is already open, in this process or another one. The text
	// names the owner.
	ErrLocked = errors.New("hapax: the directory is in use by another process or engine, and has one writer (for a deployment, see docs/operations.md#rolling-updates)")

	// ErrInUse means that an engine already uses the store, or that the store is closed.
	ErrInUse = errors.New("hapax: the store is used by an engine already, or closed: share that engine, or open the store again")

	// ErrMoved means that the directory of an open store, or a file in it, was moved, removed or
	// replaced, and the path may now belong to another store. Nothing more is written, not even by
	// Close.
	ErrMoved = errors.New("hapax: the store's directory was moved, removed or replaced while it was open: close the engine, put the directory back, and open it again")

	// ErrForeign means that the directory or file is not a store of the requested kind.
	ErrForeign = errors.New("hapax: not a store of this kind")
)
