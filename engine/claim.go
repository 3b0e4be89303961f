package engine

import (
	"context"
)

// TryClaim judges one event and commits the claim by itself. If the verdict is Claimed, the claim
// is durable and remains even if the work fails (at most once on failure). The error is Result.Err:
// it is not nil if and only if the verdict is Failed. In this case no claim is made, unless the
// error wraps ErrOutcomeUnknown.
//
// If ctx ends before the verdict is durable, the error is that of ctx. A claim that is already
// decided is withdrawn after its batch, and the event can be claimed again; until then others may
// get InFlight for it, never Duplicate. A crash before the withdrawal leaves the claim, like a
// crash between a claim and the work (Stats.AtRisk).
func (e *Engine) TryClaim(ctx context.Context, ev Event) (Result, error) {
	ev.Scope = e.core.opt.scope(ev.Scope)
	events, results := [1]Event{ev}, [1]Result{}
	err := e.judge(ctx, events[:], results[:])
	if err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	return results[0], results[0].Err
}

// CheckEvent returns the *EventError with which TryClaim would reject an event, or nil. It neither
// judges the event nor reads the store. With it, code that takes options such as a window can check
// them before the first event.
func (e *Engine) CheckEvent(ev Event) error {
	ev.Scope = e.core.opt.scope(ev.Scope)
	_, err := checkEvent(&e.core.opt, &ev, e.core.now())
	return err
}

// TryClaimBatch judges events in order, each like TryClaim, and returns a result for each. A
// repetition within the batch is a Duplicate of its first occurrence; if that was Claimed with a
// Lease, it is Pending, because the work is not finished. An event that cannot be judged is Failed
// by itself and delays no other. The claims are independent of one another: a crash may keep the
// first of them without the last.
//
// It returns a result for each event even if it returns an error. Results other than Failed are
// then as valid as without an error: a Claimed event is durably claimed, and no other caller
// handles it. A Failed event may have been claimed if the error wraps ErrOutcomeUnknown.
//
// If ctx ends, the events whose verdicts are not durable are Failed with its error, and their
// claims are withdrawn as in TryClaim.
func (e *Engine) TryClaimBatch(ctx context.Context, events []Event) ([]Result, error) {
	events = e.core.opt.scoped(events)
	results := make([]Result, len(events))
	for at := 0; at < len(events); at += maxBatchEvents {
		end := min(at+maxBatchEvents, len(events))
		if err := e.judge(ctx, events[at:end], results[at:end]); err != nil {
			fail(results[end:], err)
			return results, err
		}
	}
	return results, nil
}

// fail sets all results to Failed.
func fail(results []Result, err error) {
	for i := range results {
		results[i] = Result{Verdict: Failed, Err: err}
	}
}

// judge sets the results of at-most-once claims. If it returns an error, the undecided ones are
// Failed.
func (e *Engine) judge(ctx context.Context, events []Event, results []Result) error {
	again, err := e.judgeOnce(ctx, events, results)
	for range maxJudgedAgain {
		if err != nil || len(again) == 0 {
			return err
		}
		some, returned := make([]Event, len(again)), make([]Result, len(again))
		for n, i := range again {
			some[n] = events[i]
		}
		var next []int
		next, err = e.judgeOnce(ctx, some, returned)
		for n, i := range again {
			results[i] = returned[n]
		}
		for n, i := range next {
			next[n] = again[i]
		}
		again = next
	}
	return err
}

// maxJudgedAgain is how often an event is judged again because the caller that claimed it has left;
// after that it is InFlight.
const maxJudgedAgain = 4

// judgeOnce is judge without repetitions. again has the indices of the events that are InFlight
// because the caller that claimed them has left.
func (e *Engine) judgeOnce(ctx context.Context, events []Event, results []Result) (again []int, err error) {
	b := ClaimBatch{e: e, results: results}
	defer b.observe()                               // also if the store panics
	if ctx.Done() == nil || e.core.enter() != nil { // start returns that error
		b.start(ctx, events)
		_ = b.await(context.Background()) // never ends
		return b.again, b.err
	}
	left := false
	defer func() {
		if !left {
			e.core.leave()
		}
	}()
	b.results, b.leavable = make([]Result, len(results)), true // the committer writes them, also if the caller leaves
	b.start(ctx, events)
	if cause := b.await(ctx); cause != nil {
		left = b.leave(cause)
	}
	copy(results, b.results)
	return b.again, b.err
}
