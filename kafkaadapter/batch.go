package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

// A batch is the state of one transaction that handles the next records of a partition. Each run of
// the closure fills it anew; its results are reported after the commit. add adds the state for a
// single record to a larger batch.
type batch struct {
	p     *partitionState
	tx    *engine.Tx
	began time.Time

	result result

	tries  attempts
	low    int64 // lowest event time of the prefix, Unix milliseconds
	width  uint32
	holdAt time.Time // the new time of the hold, zero if it is unchanged

	marked    bool  // the attempt at the next record is stored, but its handler has not run
	failed    error // the failure of the record after the prefix
	retried   bool  // HandleBatch gets a single record, which has failed before
	inFlight  bool  // the record after the prefix is claimed by another transaction
	transient error // its transient failure, marked by Transient; no attempt is counted
	late      bool  // AtMostOnce: claimed records wait for their handler

	handling time.Duration
	claim    engine.ClaimRecord // of the current record, if it is claimed
	group    []*delivery        // HandleBatch only: to be handled together
	notes    []note
}

// errCut ends a batch early: the prefix commits.
var errCut = errors.New("cut")

// judge claims and handles records until all are done or the batch must end before one of them.
func (b *batch) judge(recs []*kgo.Record, peek *kgo.Record) error {
	if err := b.p.partition.fence.check(b.tx); err != nil {
		return err
	}
	if len(b.p.lookout.early.all) == 0 {
		b.p.lookout.touched += touch(recs)
	}
	var err error
	if b.p.inParts(len(recs)) {
		err = b.judgeInParts(recs)
	} else {
		err = b.judgeInOrder(recs)
	}
	if err != nil {
		return err
	}
	return b.writeState(recs, peek)
}

// judgeInOrder claims and handles records one after the other.
func (b *batch) judgeInOrder(recs []*kgo.Record) error {
	for i, rec := range recs {
		if i > 0 && (b.handling > b.p.partition.c.opt.Batching.BatchTime || b.p.partition.isEnding()) {
			break
		}
		if i%lookAhead == 0 {
			took, err := b.p.look(b.tx, recs[i:min(i+lookAhead, len(recs))], b.result.next)
			if err != nil {
				return err
			}
			b.handling += took
		}
		if rec.Offset < b.result.next { // read again after a seek: already done
			b.result.done++
			continue
		}
		s := &b.p.lookout.ahead[i%lookAhead]
		var err error
		if !isControl(rec) {
			err = b.one(s, i == 0)
		}
		if errors.Is(err, errCut) || b.result.done > 0 && stops(err) {
			break
		}
		if err != nil {
			return err
		}
		b.result.done++
		b.result.next, b.result.epoch = rec.Offset+1, rec.LeaderEpoch
		b.identified(s)
		if b.result.letterBytes >= maxLetterBytes || b.retried {
			break
		}
	}
	return b.handleGroup()
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

// one claims the event of a record and acts on the verdict. It returns errCut to leave the record
// to a later batch.
func (b *batch) one(s *sighting, first bool) error {
	r, p := s.delivery, b.p
	rec := r.Record
	n := b.attemptsAt(rec)
	if n > 0 && !p.partition.fence.marked.Load() {
		r.Attempt = int(n) + 1
	} else if n > 0 {
		r.Attempt = int(n)
	}
	if s.err != nil {
		return b.unidentified(r, s.err)
	}
	if p.blames(rec) && !p.partition.route.transactional() {
		r.Verdict, r.unjudged = engine.Failed, p.blame.err
		return b.handle(r, engine.Savepoint{}, n)
	}
	var sp engine.Savepoint
	if p.partition.route.transactional() { // nothing else is rolled back
		var err error
		if sp, err = as(b.tx).Savepoint(); err != nil {
			return err
		}
	}
	res, err := b.tryClaim(s)
	if err != nil {
		if done, stop := b.cannotJudge(r, err, first); done || stop != nil {
			return stop
		}
	}
	switch res.Verdict {
	case engine.Claimed:
		b.claim = res.Record
		b.lower(r)
	case engine.Duplicate:
		b.result.tally.verdicts[engine.Duplicate]++
		b.lower(r)
		if p.partition.log.Enabled(p.partition.ctx, p.partition.c.opt.Telemetry.DuplicateLevel.Level()) {
			b.notes = append(b.notes, note{rec: rec, event: r.Event, verdict: res.Verdict, record: res.Record})
		}
		return nil
	case engine.InFlight, engine.Pending:
		b.inFlight = true
		return errCut
	case engine.Mismatch:
		b.lower(r)
		return b.mismatched(r, &res.Record, sp, n)
	case engine.TooOld:
		return b.policy(r, p.partition.route.TooOld, deadletter.TooOld, sp, n)
	case engine.TooNew:
		return b.policy(r, p.partition.route.TooNew, deadletter.TooNew, sp, n)
	case engine.Failed:
		r.unjudged = err
	}
	return b.handle(r, sp, n)
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
func (b *batch) unidentified(r *delivery, err error) error {
	switch {
	case errors.Is(err, identify.ErrNoTopicID):
		return err // not caused by the record
	case isTransient(err):
		b.transient = err
		return errCut
	}
	return b.undecodable(r, err)
}

// attemptsAt returns the stored number of attempts at the record.
func (b *batch) attemptsAt(rec *kgo.Record) uint32 {
	if b.tries.offset == rec.Offset {
		return b.tries.n
	}
	return 0
}

// cannotJudge decides about a record for which the engine returned an error. If done is true, the
// record needs nothing more. If done is false and err is nil, the record is handled without a
// claim.
func (b *batch) cannotJudge(r *delivery, err error, first bool) (done bool, stop error) {
	var event *engine.EventError
	switch {
	case errors.As(err, &event) && event.Field != "window": // caused by the route, not by the record
		if b.p.partition.route.Failed == FailOpen {
			return false, nil
		}
		return true, b.undecodable(r, err)
	case errors.Is(err, engine.ErrLimit) && !first:
		return true, errCut // the transaction may be full: the record gets its own
	case (errors.Is(err, engine.ErrLimit) || isDamage(err)) && b.p.partition.route.Failed == FailOpen:
		return false, nil
	case isDamage(err) && !first:
		return true, errCut // the records before it commit
	case errors.Is(err, engine.ErrLimit) && b.p.partition.route.transactional():
		return true, b.attempted(r, err)
	}
	return true, err
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
func (b *batch) undecodable(r *delivery, err error) error {
	if b.p.partition.route.Undecodable == Reject {
		b.reject(r, deadletter.Undecodable, err)
		return nil
	}
	return b.deadLetter(r, deadletter.Undecodable, err, false)
}

// reject acknowledges a record without handling it.
func (b *batch) reject(r *delivery, why deadletter.Reason, err error) {
	b.result.tally.reject(why)
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: err, policy: "reject"})
}

// policy applies the route's policy to a record that is too old or too new.
func (b *batch) policy(r *delivery, policy Policy, why deadletter.Reason, sp engine.Savepoint, n uint32) error {
	switch policy {
	case DeadLetter:
		b.result.tally.verdicts[r.Verdict]++
		return b.deadLetter(r, why, fmt.Errorf("the event's time %v is %v", r.Event.Time, r.Verdict), false)
	case Process:
		return b.handle(r, sp, n)
	default:
		b.result.tally.verdicts[r.Verdict]++
		b.reject(r, why, nil)
		return nil
	}
}

// mismatched applies the route's policy to a record whose id was claimed with another fingerprint.
func (b *batch) mismatched(r *delivery, claim *engine.ClaimRecord, sp engine.Savepoint, n uint32) error {
	err := fmt.Errorf("%w: it was claimed at %v by %v", ErrMismatch, claim.FirstSeen, claim.Origin)
	switch b.p.partition.route.Mismatched {
	case DeadLetter:
		b.result.tally.verdicts[r.Verdict]++
		return b.deadLetter(r, deadletter.Mismatch, err, false)
	case Process:
		return b.handle(r, sp, n)
	case Reject:
		b.result.tally.verdicts[r.Verdict]++
		b.reject(r, deadletter.Mismatch, err)
		return nil
	}
	return fmt.Errorf("%w; it is at offset %d", err, r.Record.Offset)
}

// handle runs the handler inside the transaction, or keeps the record for a later handler.
func (b *batch) handle(r *delivery, sp engine.Savepoint, n uint32) error {
	work, ok := b.p.partition.route.Mode.(Transactional)
	if !ok {
		b.noteUnclaimed(r)
		b.keep(r)
		b.result.tally.handled(r)
		b.late = true
		return nil
	}
	if uint64(n) >= b.p.partition.attemptLimit() && !b.p.partition.fence.marked.Load() {
		err := b.deadLetter(r, deadletter.Attempts, b.p.lastError(n), r.Verdict == engine.Claimed)
		if errors.Is(err, deadletter.ErrTooLarge) {
			err = errors.Join(err, as(b.tx).RollbackTo(sp)) // the records before it commit
		}
		return err
	}
	if b.p.blames(r.Record) {
		return b.undone(r, sp, b.p.blame.err)
	}
	if work.Decode != nil && !r.decoded.done {
		began := time.Since(b.began)
		_ = decode(b.p.partition, r)
		b.handling += time.Since(b.began) - began
	}
	if r.decoded.err != nil {
		return b.handleFailed(r, sp, r.decoded.err)
	}
	if work.HandleBatch != nil {
		b.retried, r.waits = n > 0, true
		b.group = append(b.group, r)
		b.handled(r)
		return nil
	}
	began := time.Since(b.began) // half the cost of time.Now
	rec := b.p.partition.handlers.hands.give(r)
	err := b.p.partition.handlers.call(b.p.partition.traced(rec.Record), r.Record.Offset, r.slot, func(ctx context.Context) error { return work.Handle(ctx, b.tx, rec) })
	b.handling += time.Since(b.began) - began
	if err != nil {
		return b.handleFailed(r, sp, err)
	}
	b.handled(r)
	return nil
}

// keep adds a record whose handler runs after the commit.
func (b *batch) keep(r *delivery) {
	r.waits = true
	traced := isTraced(b.p.partition.c.opt.Telemetry.Propagator, r.Record)
	b.result.claimed = append(b.result.claimed, claimed{r, r.Record.Offset, r.Record.LeaderEpoch, traced, b.claim, b.result.tally})
}

// handleFailed decides how to continue after an error of the application.
func (b *batch) handleFailed(r *delivery, sp engine.Savepoint, err error) error {
	if b.p.partition.ctx.Err() != nil {
		return context.Cause(b.p.partition.ctx)
	}
	return b.undone(r, sp, err)
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
func (b *batch) undone(r *delivery, sp engine.Savepoint, err error) error {
	if err := as(b.tx).RollbackTo(sp); err != nil {
		return err // a conflict, or the engine has ended: not caused by the handler
	}
	if isTransient(err) {
		b.transient = err
		return errCut
	}
	if b.result.done > 0 && (errors.Is(err, engine.ErrLimit) || errors.As(err, new(*engine.AddError))) {
		return errCut // earlier records may have filled the transaction: the record gets its own
	}
	return b.attempted(r, err)
}

// attempted counts a failed attempt at the record after the prefix.
func (b *batch) attempted(r *delivery, err error) error {
	b.failed = err
	n := uint32(r.Attempt)
	if errors.As(err, new(*permanentError)) {
		n = max(n, uint32(b.p.partition.attemptLimit()))
	}
	b.tries, b.marked = attempts{offset: r.Record.Offset, n: n}, false
	b.notes = append(b.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: err, policy: "retry"})
	return errCut
}
