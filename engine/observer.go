package engine

import (
	"context"
	"time"
)

// An Observer is told what the engine does, for metrics and traces; package telemetry has one for Prometheus and
// OpenTelemetry. Its methods are called synchronously from many goroutines: they return at once and do not call the
// engine.
type Observer interface {
	// Claiming is called before events are judged: by one call of TryClaim, by one of TryClaimBatch, or by one of
	// Tx.TryClaim or Tx.TryReclaim. The function that it returns, if not nil, is called with their results, in the same order. The events
	// stay valid until then; neither may keep the slices after that, or change them.
	Claiming(ctx context.Context, events []Event) (done func(results []Result))

	// Synced is called when a batch of the store became durable, with the time from handing it to the store until
	// then and the number of claims in it.
	Synced(took time.Duration, claims int)
}
