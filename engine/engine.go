package engine

import (
	"context"

	"github.com/hapax-dev/hapax/engine/internal/filters"
	"github.com/hapax-dev/hapax/engine/storage"
)

// An Engine decides which caller may handle an event. It is safe for concurrent use. Open returns
// one; Close ends it.
type Engine struct {
	// Each part refers only to parts that it needs, without cycles.
	core       core
	retained   retained
	finder     finder
	queue      queue
	transactor transactor
	retention  Retention
	admin      Admin

	decider   decider
	committer committer
	scanner   scanner
	snaps     *filters.Snapshots
	rebuild   rebuilder
	holds     holds
}

// Err returns nil while the engine works, and an error that wraps ErrStopped and the cause once its
// store has failed.
func (e *Engine) Err() error { return e.core.Err() }

// Identity returns the identity of the store.
func (e *Engine) Identity() storage.Identity { return e.core.Identity() }

// Retention returns the part of the engine that drops weeks and scopes. It is safe for concurrent
// use, and valid as long as the engine.
func (e *Engine) Retention() *Retention { return &e.retention }

// Admin returns the part of the engine for operations: it looks up and forgets claims, lists weeks
// and offsets, verifies the store and backs it up. It is safe for concurrent use, and valid as long
// as the engine.
func (e *Engine) Admin() *Admin { return &e.admin }

// Weeks lists the retained weeks with claims, oldest first. While the counts are being rebuilt, it
// returns ErrRebuilding.
func (e *Engine) Weeks(ctx context.Context) ([]WeekInfo, error) {
	return e.admin.weeks(ctx)
}
