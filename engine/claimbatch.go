package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
)

// partEvents is the number of events in a part of a batch. A part is handed over as soon as it is
// prepared; the next one is prepared while this one is decided and applied.
const partEvents = 256

// A ClaimBatch is a batch of events that StartClaimBatch has handed over. It must be used by one
// goroutine at a time.
type ClaimBatch struct {
	e       *Engine
	results []Result
	ended   bool                                   // results and err are final
	parts   struct{ first, last, next *ownClaims } // next is the first one without answers
	waited  int                                    // parts before next
	decided int                                    // number of leading events whose verdicts are durable: all if err is nil
	err     error
	again   []int          // events that are InFlight because the caller that claimed them has left
	settle  bool           // answers of the last parts depend on reads, and no part was handed over after them
	asOf    uint64         // these reads saw no later batch
	done    func([]Result) // the observer's, nil if there is none

	leavable bool // the caller may leave (see leave)
}

// StartClaimBatch is TryClaimBatch in two steps: it hands the events over in order, and
// ClaimBatch.Wait waits for the results. So one goroutine can have several batches in flight, and
// prepare the next one while the previous ones are written. Batches are decided in the order in
// which they were started: a repetition in a later batch is a Duplicate, or Pending as in
// TryClaimBatch. Nothing is known of an event before Wait returns its result, which is as durable
// as that of TryClaimBatch.
//
// A batch is handed over in parts of 256 events. StartClaimBatch blocks while 64 requests wait for
// the committer, or until ctx ends. If ctx ends before all parts are handed over, or the engine is
// closed or has failed, Wait returns the error and the results of the previous parts. The caller
// may change events and the bytes of their ids once StartClaimBatch has returned.
//
// What was handed over is decided even if Wait is not called, ctx ends or Close waits for it; a
// caller that may give up must use TryClaimBatch. If Wait is not called, events may be claimed and
// not handled: at most once, as after a crash. Wait counts the verdicts and reports them to
// Options.Observer.
func (e *Engine) StartClaimBatch(ctx context.Context, events []Event) *ClaimBatch {
	events = e.core.opt.scoped(events)
	b := &ClaimBatch{e: e, results: make([]Result, len(events))}
	if e.core.opt.Observer != nil {
		events = cloneEvents(events) // the observer may read them until it gets the results
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

// Wait waits for the results, one for each event, also if it returns an error, like TryClaimBatch.
// If ctx ends first, the results are nil and the error is that of ctx; the events may be claimed
// nevertheless. Wait may be called again, even after it has returned the results, and after Close.
func (b *ClaimBatch) Wait(ctx context.Context) ([]Result, error) {
	if err := b.await(ctx); err != nil {
		return nil, err
	}
	b.observe()
	return b.results, b.err
}

// start prepares the events and hands the undecided ones over to the committer.
func (b *ClaimBatch) start(ctx context.Context, events []Event) {
	e := b.e
	if b.err = ctx.Err(); b.err != nil {
		fail(b.results, b.err)
		b.ended = true
		return
	}
	if e.core.opt.Observer != nil {
		b.done = e.core.opt.Observer.Claiming(ctx, events)
	}
	if b.err = e.core.enter(); b.err != nil {
		return
	}
	defer e.core.leave()
	expected := false // the committer may wait for another part
	defer func() {
		if expected { // the last parts need no decision, could not be prepared, or ctx has ended
			e.queue.handOverBehind(&ownClaims{ticket: newTicket()})
		}
	}()
	for at := 0; at < len(events) && b.err == nil; at += partEvents {
		end := min(at+partEvents, len(events))
		r := e.queue.spares.newOwn()
		r.more = end < len(events)
		b.add(r)
		b.err = e.finder.prepare(r, events[at:end], b.results[at:end])
		b.settle = b.settle || r.set.looked
		if b.err != nil || r.open == 0 {
			continue
		}
		if r.leavable = b.leavable; r.leavable {
			e.core.left.leavable.Add(1)
		}
		if b.err = e.queue.handOver(ctx, r); b.err == nil {
			expected, b.settle = r.more, false
		} else if r.leavable {
			e.core.left.leavable.Add(-1)
		}
	}
	b.asOf = e.core.applying.Load()
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

// await waits for the results. If ctx ends first, it returns the error of ctx.
func (b *ClaimBatch) await(ctx context.Context) error {
	if b.ended {
		return nil
	}
	for r := b.parts.next; r != nil; r = r.next {
		b.parts.next = r
		if r.ticket.handed && !r.ticket.await(ctx) {
			return ctx.Err()
		}
		b.waited++
		switch {
		case !r.ticket.handed:
		case r.ticket.err == nil:
			b.decided = min(b.waited*partEvents, len(b.results)) // the answers before it are durable, too: see release
		case b.err == nil, errors.Is(r.ticket.err, ErrOutcomeUnknown): // start may have set another error
			b.err = r.ticket.err
		}
	}
	b.parts.next = nil
	if b.err == nil && b.settle {
		err := b.e.core.settleUpTo(ctx, b.asOf)
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

// finish caches the claims that the parts have found, and recycles the parts.
func (b *ClaimBatch) finish() {
	e := b.e
	for r, at := b.parts.first, 0; r != nil; at += partEvents {
		if at < b.decided {
			e.finder.cache.add(r.set.found, r.set.arena, r.set.epoch)
			b.distrust(r, at, b.results)
		}
		next := r.next
		e.queue.spares.freeOwn(r)
		r = next
	}
	b.parts.first, b.parts.last, b.ended = nil, nil, true
	if b.err != nil {
		fail(b.results[b.decided:], b.err)
	}
	e.core.counters.countOwn(b.results)
}

// distrust sets verdicts of a part to InFlight if they may depend on claims whose callers have left
// since the look-up. at is the index of the part's first event.
func (b *ClaimBatch) distrust(r *ownClaims, at int, results []Result) {
	left := &b.e.core.left
	if left.changes.Load() == r.departed {
		return
	}
	for i := range r.set.claims {
		c := &r.set.claims[i]
		for c.result != &b.results[at] {
			at++
		}
		switch results[at].Verdict {
		case Duplicate, Pending, Mismatch:
		default:
			continue
		}
		changed := left.changedSince(r.departed, c.place.hash)
		for _, p := range r.set.nearOf(c) {
			changed = changed || left.changedSince(r.departed, p.hash)
		}
		if changed {
			results[at] = Result{Verdict: InFlight}
			b.again = append(b.again, at)
		}
	}
}

// leave ends the batch because its caller no longer waits; cause says why. Parts with final answers
// keep them. The events of the others are Failed, and a goroutine withdraws their claims: leave
// then returns true, and the goroutine ends the caller's call (core.leave).
func (b *ClaimBatch) leave(cause error) bool {
	e, returned := b.e, make([]Result, len(b.results))
	fail(returned, cause)
	missing := len(returned) - copy(returned[:b.decided], b.results)
	var left []*ownClaims
	next := b.parts.first
	for at := 0; next != nil; at += partEvents {
		r := next
		next = r.next
		waited := at/partEvents < b.waited
		switch {
		case waited && at < b.decided:
			b.distrust(r, at, returned)
		case waited, !r.ticket.handed:
		case r.ticket.leave():
			left = append(left, r)
			continue
		default:
			r.ticket.await(context.Background())
			if b.err = cmp.Or(b.err, r.ticket.err); r.ticket.err == nil {
				missing -= copy(returned[at:min(at+partEvents, len(returned))], b.results[at:])
				b.distrust(r, at, returned)
			}
		}
		e.queue.spares.freeOwn(r)
	}
	b.parts.first, b.parts.last, b.parts.next, b.ended, b.results = nil, nil, nil, true, returned
	e.core.counters.countOwn(returned)
	if missing > 0 {
		b.err = cmp.Or(b.err, cause)
	}
	if len(left) == 0 {
		return false
	}
	for _, r := range left {
		e.core.left.atRisk.Add(int64(r.open))
	}
	go func() {
		defer e.core.leave()
		for _, r := range left {
			e.queue.withdraw(r, r.open)
		}
	}()
	return true
}

// observe reports the results to the observer. If the store has panicked, the committer may still
// write them, so the observer gets zero results.
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
