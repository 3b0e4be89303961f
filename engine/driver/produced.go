package driver

import "github.com/hapax-dev/hapax/engine"

// OnProduced registers fn to be called after messages have become durable in the outbox. fn must
// return at once and not use the engine. stop unregisters fn; a call may still be in progress when
// stop returns.
func OnProduced(e *engine.Engine, fn func()) (stop func()) { return e.Driver(key).OnProduced(fn) }
