package main

import (
	"context"
	"errors"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

const (
	exitFailed     = 1
	exitUsage      = 2
	exitNotWanted  = 3
	exitIncomplete = 4
)

// notWanted is an error for exitNotWanted.
type notWanted string

func (n notWanted) Error() string { return string(n) }

// errUnchanged ends commands that change a store if --yes is missing.
const errUnchanged = notWanted("nothing was changed: add --yes to do this")

func exitStatus(err error) int {
	switch {
	case errors.As(err, new(notWanted)):
		return exitNotWanted
	case errors.As(err, new(*engine.EventError)), errors.As(err, new(*engine.ArgumentError)), errors.As(err, new(usageError)):
		return exitUsage
	case errors.As(err, new(incomplete)), errors.As(err, new(*storage.DamageError)), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return exitIncomplete
	}
	return exitFailed
}

// An incomplete is an error for exitIncomplete.
type incomplete string

func (i incomplete) Error() string { return string(i) }

// A usageError is an error for exitUsage.
type usageError string

func (u usageError) Error() string { return string(u) }
