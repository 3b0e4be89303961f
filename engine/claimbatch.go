package engine

import (
	"bytes"
	"context"
	"errors"
	"slices"
)

// partEvents is how many events of a batch are prepared before they are handed over, so that the
// next ones are prepared while these are decided and applied.
const partEvents = 256

// A ClaimBatch is a batch of events that StartClaimBatch has handed over. It is used by one
// goroutine at a time.
type ClaimBatch struct {
	e       *Engine
	results []Result
	ended   bool                                   // results and err are final
	parts   struct{ first, last, next *ownClaims } // next is the first whose answers are not there yet
	waited  int                                    // parts before next
	decided int                                    // events, from the first on, that were decided durably: all if err is nil
	err     error
	settle  bool           // answers of the last parts rest on reads, and nothing was handed over after those
	asOf    uint64         // a batch that is not before what these reads have seen
	done    func([]Result) // the observer's, nil if there is none
}

// StartClaimBatch is TryClaimBatch in two steps: it hands the events over in order, and Wait of the
// batch that it returns waits for the results. So one goroutine can have several batches in flight,
// and prepare the next one while those before it are written. Batches are decided in the order in
// which they were started: a repetition in a later one is a Duplicate, or Pending as in
// TryClaimBatch. Nothing is known of an event before Wait has returned its result, which is then as
// durable as that of TryClaimBatch.
//
// A batch is handed over in parts of 256 events; StartClaimBatch blocks while 64 parts wait for the
// committer. ctx is checked until the first part is handed over. If it ends before that, or the
// engine is closed or has failed, Wait returns the error. The caller may change events and the bytes
// of their ids once StartClaimBatch has returned.
//
// What was handed over is decided whether or not Wait is called, also while Close waits for it. If
// Wait is not called, events may be claimed that are not handled: at most once, as after a crash.
// Verdicts are counted, and given to an Options.Observer, by Wait.
func (e *Engine) StartClaimBatch(ctx context.Context, events []Event) *ClaimBatch {
	events = e.opt.scoped(events)
	b := &ClaimBatch{e: e, results: make([]Result, len(events))}
	if e.opt.Observer != nil {
		events = cloneEvents(events) // it may read them until it is given the results
	}
	started := false
	defer func() {
		if !started { // the store has panicked
			b.observe()
		}
	}()
	b.start(ctx, events)
	started = true
	return b
}

// Wait waits for the results, one for each event, as TryClaimBatch does: also with an error. If ctx
// ends first, the results are nil and the error is that of ctx; the events may be claimed all the
// same. Wait may be called again, after it has returned the results and after Close, too.
func (b *ClaimBatch) Wait(ctx context.Context) ([]Result, error) {
	if err := b.await(ctx); err != nil {
		return nil, err
	}
	b.observe()
	return b.results, b.err
}

// start prepares the events and hands over what the committer is to decide.
func (b *ClaimBatch) start(ctx context.Context, events []Event) {
	e := b.e
	if b.err = ctx.Err(); b.err != nil {
		fail(b.results, b.err)
		b.ended = true
		return
	}
	if e.opt.Observer != nil {
		b.done = e.opt.Observer.Claiming(ctx, events)
	}
	if b.err = e.enter(); b.err != nil {
		return
	}
	defer e.leave()
	expected := false // the committer may wait for another part
	defer func() {
		if expected { // the last ones need no decision, or could not be prepared
			_ = e.handOver(context.Background(), &ownClaims{ticket: newTicket()}) // does not fail
		}
	}()
	for at := 0; at < len(events) && b.err == nil; at += partEvents {
		end := min(at+partEvents, len(events))
		r := e.spares.newOwn()
		r.more = end < len(events)
		b.add(r)
		b.err = e.prepare(r, events[at:end], b.results[at:end])
		b.settle = b.settle || r.looked
		if b.err != nil || r.open == 0 {
			continue
		}
		if b.err = e.handOver(ctx, r); b.err == nil {
			expected, b.settle = r.more, false
			ctx = context.Background() // its claims are made: the others are, too
		}
	}
	b.asOf = e.applying.Load()
}

// add adds a part.
func (b *ClaimBatch) add(r *ownClaims) {
	if p := &b.parts; p.last == nil {
		p.first, p.next = r, r
	} else {
		p.last.next = r
	}
	b.parts.last = r
}

// await waits for the results. Its error is that of ctx, if that ends before.
func (b *ClaimBatch) await(ctx context.Context) error {
	if b.ended {
		return nil
	}
	for r := b.parts.next; r != nil; r = r.next {
		b.parts.next = r
		if r.handed && !r.await(ctx) {
			return ctx.Err()
		}
		b.waited++
		switch {
		case !r.handed:
		case r.err == nil:
			b.decided = min(b.waited*partEvents, len(b.results)) // the answers before it are durable, too: see release
		case b.err == nil, errors.Is(r.err, ErrOutcomeUnknown): // start may have found another error meanwhile
			b.err = r.err
		}
	}
	b.parts.next = nil
	if b.err == nil && b.settle {
		err := b.e.settleUpTo(ctx, b.asOf)
		if err != nil && b.e.Err() == nil {
			return err
		}
		b.err = err
	}
	if b.err == nil {
		b.decided = len(b.results)
	}
	b.finish()
	return nil
}

// finish takes what the parts have found and gives them back.
func (b *ClaimBatch) finish() {
	e := b.e
	for r, at := b.parts.first, 0; r != nil; at += partEvents {
		if at < b.decided {
			e.recent.add(r.found, r.arena, r.epoch)
		}
		next := r.next
		e.spares.freeOwn(r)
		r = next
	}
	b.parts.first, b.parts.last, b.ended = nil, nil, true
	if b.err != nil {
		fail(b.results[b.decided:], b.err)
	}
	e.counters.countOwn(b.results)
}

// observe gives the observer the results. If the store has panicked, they are not final, and the
// committer may still write them: the observer gets zero ones.
func (b *ClaimBatch) observe() {
	if b.done == nil {
		return
	}
	results := b.results
	if !b.ended {
		results = make([]Result, len(results))
	}
	b.done(results)
	b.done = nil
}

// cloneEvents copies events and their ids.
func cloneEvents(events []Event) []Event {
	events = slices.Clone(events)
	for i := range events {
		events[i].ID = bytes.Clone(events[i].ID)
	}
	return events
}
