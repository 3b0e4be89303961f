package engine

import (
	"context"
)

// TryClaim judges one event and commits the claim by itself: if the verdict is Claimed, the claim
// is durable and remains even if the work fails (at most once on failure). The error is that of
// Result.Err, for the verdict Failed: then no claim is made, unless the error wraps
// ErrOutcomeUnknown.
//
// TryClaim checks ctx until the event is handed over for judgement. After that it waits for the
// verdict, so that no claim is made without an answer to its caller.
func (e *Engine) TryClaim(ctx context.Context, ev Event) (Result, error) {
	ev.Scope = e.opt.scope(ev.Scope)
	events, results := [1]Event{ev}, [1]Result{}
	err := e.judge(ctx, events[:], results[:])
	if err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	return results[0], results[0].Err
}

// CheckEvent returns the *EventError with which TryClaim would reject an event, nil if it would judge
// it. It neither judges the event nor reads the store, so that code with options of its own, such as
// a window, can reject them before the first event.
func (e *Engine) CheckEvent(ev Event) error {
	ev.Scope = e.opt.scope(ev.Scope)
	_, err := checkEvent(&e.opt, &ev, e.now())
	return err
}

// TryClaimBatch judges events in order, as TryClaim does each of them, and returns a result for
// each. A repetition within the batch is a Duplicate of its first occurrence; if that was Claimed
// with a Lease, it is Pending, because the work is not finished. An event that cannot be judged is
// Failed by itself and delays no other. The claims are independent of one another: a crash may keep
// the first of them without the last.
//
// It returns a result for each event even if it returns an error. Results other than Failed are
// then as valid as without an error: a Claimed event is durably claimed, and no other caller
// handles it. A Failed event may have been claimed if the error wraps ErrOutcomeUnknown.
//
// TryClaimBatch checks ctx until the first part of the batch is handed over for judgement. After
// that it waits for all verdicts, even if ctx ends.
func (e *Engine) TryClaimBatch(ctx context.Context, events []Event) ([]Result, error) {
	events = e.opt.scoped(events)
	results := make([]Result, len(events))
	for at := 0; at < len(events); at += maxBatchEvents {
		end := min(at+maxBatchEvents, len(events))
		if err := e.judge(ctx, events[at:end], results[at:end]); err != nil {
			fail(results[end:], err)
			return results, err
		}
		if end < len(events) {
			ctx = context.WithoutCancel(ctx)
		}
	}
	return results, nil
}

// fail makes all results Failed.
func fail(results []Result, err error) {
	for i := range results {
		results[i] = Result{Verdict: Failed, Err: err}
	}
}

// judge fills results for at-most-once claims. If it returns an error, those that were not decided
// are Failed.
func (e *Engine) judge(ctx context.Context, events []Event, results []Result) error {
	b := ClaimBatch{e: e, results: results}
	defer b.observe() // also if the store panics
	b.start(ctx, events)
	_ = b.await(context.Background()) // it does not end
	return b.err
}
