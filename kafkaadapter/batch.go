package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/owner"
)

// A batch is the state of one transaction that handles the next records of a partition. Each run of
// the closure fills it anew; its results are reported after the commit. add adds the state for a
// single record to a larger batch.
type batch struct {
	p     *partitionState
	tx    *engine.Tx
	began time.Time

	result result

	ours   owner.State // of the fence
	low    int64       // lowest event time of the prefix, Unix milliseconds
	holdAt time.Time   // the new time of the hold, zero if it is unchanged

	failed    error // the failure of the record after the prefix
	retried   bool  // HandleBatch gets a single record, which has failed before
	inFlight  bool  // the record after the prefix is claimed by another transaction
	transient error // its transient failure, marked by Transient; no attempt is counted
	late      bool  // AtMostOnce: claimed records wait for their handler

	handling time.Duration
	current  current
	group    []*delivery // HandleBatch only: to be handled together
	notes    []note
}

// A fate is what becomes of a record in a batch, unless an error rolls back the batch.
type fate uint8

const (
	completed fate = iota // it is part of the batch
	left                  // the batch ends before it: the prefix commits, and a later batch has it
)

// A current is the record that a batch is about to judge.
type current struct {
	before   engine.Savepoint   // of what it does in the transaction; zero if nothing else than the batch is rolled back
	attempts uint32             // stored for it
	claim    engine.ClaimRecord // of its event, if it is claimed
}

// identified counts by which rules a completed record was identified, and reports that the headers of
// a dead letter were not accepted.
func (b *batch) identified(s *sighting) {
	b.result.tally.identified(s)
	if s.delivery != nil && s.refused != "" {
		b.notes = append(b.notes, note{rec: s.delivery.Record, event: s.delivery.Event, verdict: s.delivery.Verdict, err: s.refused, policy: "own_id"})
	}
}

// stops reports whether an error stops the partition before the record: the records before it
// commit, and the record is the first of the next batch.
func stops(err error) bool {
	return errors.Is(err, identify.ErrNoTopicID) || errors.Is(err, deadletter.ErrTooLarge) || errors.Is(err, ErrMismatch)
}

// one claims the event of a record and acts on the verdict. An error rolls back the batch.
func (b *batch) one(s *sighting, first bool) (fate, error) {
	r, p := s.delivery, b.p
	b.begin(r)
	switch {
	case s.err != nil:
		return b.unidentified(r, s.err)
	case p.blames(r.Record) && !p.partition.route.transactional():
		r.Verdict, r.unjudged = engine.Failed, p.blame.err
		return b.handle(r)
	case p.partition.route.transactional():
		var err error
		if b.current.before, err = as(b.tx).Savepoint(); err != nil {
			return left, err
		}
	}
	res, err := b.tryClaim(s)
	if err != nil {
		return b.cannotJudge(r, err, first)
	}
	switch res.Verdict {
	case engine.Claimed:
		b.current.claim = res.Record
		b.lower(r)
	case engine.Duplicate:
		b.result.tally.verdicts[engine.Duplicate]++
		b.lower(r)
		if p.partition.log.Enabled(p.partition.ctx, slog.LevelDebug) {
			b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: res.Verdict, record: res.Record})
		}
		return completed, nil
	case engine.InFlight, engine.Pending:
		b.inFlight = true
		return left, nil
	case engine.Mismatch:
		b.lower(r)
		return b.mismatched(r, &res.Record)
	case engine.TooOld:
		return b.policy(r, p.partition.route.Policies[TooOld], deadletter.TooOld)
	case engine.TooNew:
		return b.policy(r, p.partition.route.Policies[TooNew], deadletter.TooNew)
	}
	return b.handle(r)
}

// begin makes a record the current one, and numbers the attempt at it.
func (b *batch) begin(r *delivery) {
	b.current = current{attempts: b.attemptsAt(r.Record)}
	if n := int(b.current.attempts); n > 0 && !b.p.partition.fence.Marked() {
		r.Attempt = n + 1
	} else if n > 0 {
		r.Attempt = n
	}
}

// tryClaim claims the event of a record, or reopens its dead letter.
func (b *batch) tryClaim(s *sighting) (res engine.Result, err error) {
	r := s.delivery
	if s.replayed {
		res, err = as(b.tx).TryReopen(judged(r.Event, true), s.generation)
		r.Reopened = res.Verdict == engine.Claimed && res.Record.Generation > 0
	} else {
		res, err = as(b.tx).TryClaim(judged(r.Event, false))
	}
	r.Verdict = res.Verdict
	return res, err
}

// unidentified decides about a record whose event is unknown because of err.
func (b *batch) unidentified(r *delivery, err error) (fate, error) {
	switch {
	case errors.Is(err, identify.ErrNoTopicID):
		return left, err // not caused by the record
	case IsTransient(err):
		b.transient = fmt.Errorf("offset %d: %w", r.Record.Offset, err)
		return left, nil
	}
	return b.undecodable(r, err)
}

// attemptsAt returns the stored number of attempts at the record.
func (b *batch) attemptsAt(rec *kgo.Record) uint32 {
	if b.ours.Tries.Offset == rec.Offset {
		return b.ours.Tries.N
	}
	return 0
}

// cannotJudge decides about a record for which the engine returned an error. If it is handled
// without a claim, its verdict is Failed.
func (b *batch) cannotJudge(r *delivery, err error, first bool) (fate, error) {
	var event *engine.EventError
	ofRecord := errors.As(err, &event) && event.Field != "window" // which is the route's
	limit, damage, open := errors.Is(err, engine.ErrLimit), isDamage(err), b.p.partition.route.Policies[Failed] == Process
	switch {
	case ofRecord && !open:
		return b.undecodable(r, err)
	case limit && !ofRecord && !first:
		return left, nil // the transaction may be full: the record gets its own
	case open && (ofRecord || limit || damage):
		if r.Verdict == engine.Failed {
			r.unjudged = err
		}
		return b.handle(r)
	case damage && !first:
		return left, nil // the records before it commit
	case limit && b.p.partition.route.transactional():
		return b.attempted(r, err)
	}
	return left, err
}

// isDamage reports whether the claim on an event may be in a damaged part of the store, which works
// otherwise.
func isDamage(err error) bool { return errors.As(err, new(*storage.DamageError)) }

// lower keeps the lowest event time of the batch.
func (b *batch) lower(r *delivery) {
	if at, ok := unread(&r.Event); ok {
		b.low = min(b.low, at.UnixMilli())
	}
}

// undecodable applies the route's policy to a record that has no usable id or time.
func (b *batch) undecodable(r *delivery, err error) (fate, error) {
	if b.p.partition.route.Policies[Undecodable] == Reject {
		return b.reject(r, deadletter.Undecodable, err), nil
	}
	return completed, b.deadLetter(r, deadletter.Undecodable, err, false)
}

// reject acknowledges a record without handling it.
func (b *batch) reject(r *delivery, why deadletter.Reason, err error) fate {
	b.result.tally.reject(why)
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: err, policy: "reject"})
	return completed
}

// policy applies the route's policy to a record that is too old or too new.
func (b *batch) policy(r *delivery, policy Policy, why deadletter.Reason) (fate, error) {
	switch policy {
	case DeadLetter:
		b.result.tally.verdicts[r.Verdict]++
		return completed, b.deadLetter(r, why, fmt.Errorf("the event's time %v is %v", r.Event.Time, r.Verdict), false)
	case Process:
		return b.handle(r)
	default:
		b.result.tally.verdicts[r.Verdict]++
		return b.reject(r, why, nil), nil
	}
}

// mismatched applies the route's policy to a record whose id was claimed with another fingerprint.
func (b *batch) mismatched(r *delivery, claim *engine.ClaimRecord) (fate, error) {
	err := fmt.Errorf("%w: it was claimed at %v by %v", ErrMismatch, claim.FirstSeen, claim.Origin)
	switch b.p.partition.route.Policies[Mismatch] {
	case DeadLetter:
		b.result.tally.verdicts[r.Verdict]++
		return completed, b.deadLetter(r, deadletter.Mismatch, err, false)
	case Process:
		return b.handle(r)
	case Reject:
		b.result.tally.verdicts[r.Verdict]++
		return b.reject(r, deadletter.Mismatch, err), nil
	}
	return left, fmt.Errorf("%w; it is at offset %d", err, r.Record.Offset)
}

// handle runs the handler inside the transaction, or keeps the record for a later handler.
func (b *batch) handle(r *delivery) (fate, error) {
	work, ok := b.p.partition.route.Mode.(Transactional)
	if !ok {
		b.noteUnclaimed(r)
		b.keep(r)
		b.result.tally.handled(r)
		b.late = true
		return completed, nil
	}
	if n := b.current.attempts; uint64(n) >= b.p.partition.attemptLimit() && !b.p.partition.fence.Marked() {
		why, last := deadletter.Attempts, b.p.lastError(n)
		if IsPermanent(last) {
			why = deadletter.Permanent
		}
		err := b.deadLetter(r, why, last, r.Verdict == engine.Claimed)
		if errors.Is(err, deadletter.ErrTooLarge) {
			err = errors.Join(err, as(b.tx).RollbackTo(b.current.before)) // the records before it commit
		}
		return completed, err
	}
	if b.p.blames(r.Record) {
		return b.undone(r, b.p.blame.err)
	}
	if work.Decode != nil && !r.decoded.done {
		began := time.Since(b.began)
		_ = decode(b.p.partition, r)
		b.handling += time.Since(b.began) - began
	}
	if r.decoded.err != nil {
		return b.handleFailed(r, r.decoded.err)
	}
	if work.HandleBatch != nil {
		b.retried, r.waits = b.current.attempts > 0, true
		b.group = append(b.group, r)
		b.handled(r)
		return completed, nil
	}
	began := time.Since(b.began) // half the cost of time.Now
	rec := b.p.partition.handlers.hands.give(r)
	err := b.p.partition.handlers.call(b.p.partition.traced(rec.Record), r.Record.Offset, r.slot, func(ctx context.Context) error { return work.Handle(ctx, b.tx, rec) })
	b.handling += time.Since(b.began) - began
	if err != nil {
		return b.handleFailed(r, err)
	}
	b.handled(r)
	return completed, nil
}

// keep adds a record whose handler runs after the commit.
func (b *batch) keep(r *delivery) {
	r.waits = true
	traced := isTraced(b.p.partition.c.opt.Telemetry.Propagator, r.Record)
	b.result.claimed = append(b.result.claimed, claimed{r, r.Record.Offset, r.Record.LeaderEpoch, traced, b.current.claim, b.result.tally})
}

// handleFailed decides how to continue after an error of the application.
func (b *batch) handleFailed(r *delivery, err error) (fate, error) {
	if b.p.partition.ctx.Err() != nil {
		return left, context.Cause(b.p.partition.ctx)
	}
	return b.undone(r, err)
}

// handled counts a record whose handling is part of the batch.
func (b *batch) handled(r *delivery) {
	b.noteUnclaimed(r)
	b.result.tally.handled(r)
}

// noteUnclaimed records that a record is handled without a claim.
func (b *batch) noteUnclaimed(r *delivery) {
	if r.Verdict != engine.Claimed {
		b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: r.unjudged, policy: "process"})
	}
}

// undone rolls back a record that has failed, and decides how to continue.
func (b *batch) undone(r *delivery, err error) (fate, error) {
	if err := as(b.tx).RollbackTo(b.current.before); err != nil {
		return left, err // a conflict, or the engine has ended: not caused by the handler
	}
	if IsTransient(err) {
		b.transient = fmt.Errorf("offset %d, event %s: %w", r.Record.Offset, b.p.partition.c.opt.Telemetry.IDs.Text(string(r.Event.ID)), err)
		return left, nil
	}
	if b.result.done > 0 && (errors.Is(err, engine.ErrLimit) || errors.As(err, new(*engine.AddError))) {
		return left, nil // earlier records may have filled the transaction: the record gets its own
	}
	return b.attempted(r, err)
}

// attempted counts a failed attempt at the record after the prefix.
func (b *batch) attempted(r *delivery, err error) (fate, error) {
	b.failed = err
	n, limit, policy := uint32(r.Attempt), b.p.partition.attemptLimit(), "retry"
	if IsPermanent(err) {
		n = max(n, uint32(limit))
	}
	if uint64(n) >= limit {
		policy = "give_up"
	}
	b.ours.Tries, b.ours.Marked = owner.Attempts{Offset: r.Record.Offset, N: n}, false
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: err, policy: policy})
	return left, nil
}
