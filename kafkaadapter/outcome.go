package kafkaadapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
)

// An outcome is what one batch does: it is filled inside the transaction, from the start at each run of the closure,
// and is told after the commit.
type outcome struct {
	p     *partition
	tx    *engine.Tx
	began time.Time

	touched byte // keeps touch from being left out

	done   int // records of the prefix that commits
	next   int64
	epoch  int32
	tries  attempts
	low    int64 // lowest event time of the prefix, Unix milliseconds
	width  uint32
	holdAt time.Time // where the hold moved to, zero if it stayed

	marked   bool  // the attempt at the next record is stored, and its handler has not run
	failed   error // why the record after the prefix did not go through
	inFlight bool  // it is held by another transaction
	letter   bool  // the last record of the prefix became a dead letter, which waits to be published
	late     bool  // own-commit: claimed records wait for their handler

	handling time.Duration
	claimed  []*Record // own-commit only
	verdicts [engine.Failed + 1]int
	notes    []note
	idRules  [idRuleCount]int
	tmRules  [timeRuleCount]int
	reopened int
	unclaim  int // handled without a claim
	badTimes int // times that could not be read
}

// A note is something to log about a record once the batch has committed.
type note struct {
	rec     *kgo.Record
	event   engine.Event
	verdict engine.Verdict
	record  engine.Record
	err     error
	policy  string
}

// errCut ends a batch early: the prefix commits.
var errCut = errors.New("cut")

// judge judges records in order until all are done or the batch has to end before one of them.
func (o *outcome) judge(recs []*kgo.Record, peek *kgo.Record) error {
	if err := o.p.own(o.tx); err != nil {
		return err
	}
	o.touched = touch(recs)
	for i, rec := range recs {
		if i > 0 && (o.handling > o.p.c.opt.BatchTime || o.p.isEnding()) {
			break
		}
		if i%lookAhead == 0 {
			if err := o.look(recs[i:min(i+lookAhead, len(recs))]); err != nil {
				return err
			}
		}
		if rec.Offset < o.next { // read again after a seek: it is done
			o.done++
			continue
		}
		s := &o.p.ahead[i%lookAhead]
		var err error
		if !isControl(rec) {
			err = o.one(s, i == 0)
		}
		if errors.Is(err, errCut) || o.done > 0 && stops(err) {
			break
		}
		if err != nil {
			return err
		}
		o.done++
		o.next, o.epoch = rec.Offset+1, rec.LeaderEpoch
		o.count(s)
		if o.letter {
			break
		}
	}
	return o.seal(recs, peek)
}

// touch reads a little of all records: of headers, which identify them, and of values, for handlers. They were decoded a
// while ago and are out of the processor's caches by now; read one after the other, with nothing between, they are waited
// for together.
func touch(recs []*kgo.Record) (read byte) {
	for _, r := range recs {
		read += byte(r.Offset)
		if len(r.Value) > 0 {
			read += r.Value[0]
		}
		for i := range r.Headers {
			if h := &r.Headers[i]; len(h.Key) > 0 && len(h.Value) > 0 {
				read += h.Key[0] + h.Value[0]
			}
		}
	}
	return read
}

// stops reports whether an error is one that stops the partition before the record: the records before it commit, and
// it is met again as the first of the next batch.
func stops(err error) bool { return errors.Is(err, ErrUndecodable) || errors.Is(err, ErrNoTopicID) }

// seal writes what the batch has to say of the partition itself.
func (o *outcome) seal(recs []*kgo.Record, peek *kgo.Record) error {
	p := o.p
	if o.failed != nil {
		o.next = recs[o.done].Offset
	}
	if o.next != p.next {
		if err := o.tx.SetOffset(p.pos, engine.Offset{Next: o.next, LeaderEpoch: o.epoch, TopicID: p.topicID}); err != nil {
			return err
		}
	}
	if err := o.keepTries(recs, peek); err != nil {
		return err
	}
	if o.width = p.wider(o.done); o.width > 0 {
		if err := o.tx.Put(partitionKey(keyOwner, p.pos), owner{p.token, o.width}.encode()); err != nil {
			return err
		}
	}
	return p.hold(o.tx, o)
}

// wider says how wide the next batches may be, 0 for as wide as before. It is stored before they are made, so that after
// a crash it is known how many records may have been under way.
func (p *partition) wider(done int) uint32 {
	if done < int(p.width) || p.size.n < int(p.width) || int(p.width) >= p.c.opt.MaxBatch {
		return 0
	}
	return uint32(min(2*int(p.width), p.c.opt.MaxBatch))
}

// keepTries stores the attempts at the record that is next, or forgets those at one that is done.
func (o *outcome) keepTries(recs []*kgo.Record, peek *kgo.Record) error {
	p := o.p
	before := o.tries
	switch {
	case !p.c.withWork():
		return nil
	case o.failed != nil: // counted by attempted
	case peek != nil && p.careful > o.done && o.done == len(recs) && !o.letter && !isControl(peek):
		o.tries, o.marked = attempts{offset: peek.Offset, n: 1}, true
	case o.done > 0:
		o.tries, o.marked = attempts{}, false
	}
	if o.tries == p.tries {
		return nil
	}
	if o.tries == (attempts{}) {
		if before == (attempts{}) && p.tries == (attempts{}) {
			return nil
		}
		return o.tx.Delete(partitionKey(keyAttempts, p.pos))
	}
	return o.tx.Put(partitionKey(keyAttempts, p.pos), o.tries.encode())
}

// lookAhead is the number of records that are identified, and looked up, before the first of them is judged.
const lookAhead = 32

// A sighting is a record that was identified and is still to be judged.
type sighting struct {
	*Record    // nil for what look leaves out
	generation uint64
	replayed   bool
	badTimes   int
	err        error
}

// look identifies the records that are judged next, and has the transaction look ahead to them. Left out are control records,
// and those that are done.
func (o *outcome) look(recs []*kgo.Record) error {
	p := o.p
	p.events = p.events[:0]
	for i, rec := range recs {
		s := &p.ahead[i]
		p.spareRecord(s.Record)
		if *s = (sighting{}); isControl(rec) || rec.Offset < o.next {
			continue
		}
		s.Record = p.newRecord(rec)
		if s.err = o.identify(s); s.err == nil && !s.replayed {
			p.events = append(p.events, s.Event)
		}
	}
	if len(p.events) < 2 {
		return nil
	}
	return o.tx.Prefetch(p.events)
}

// count counts how a record that is done was identified.
func (o *outcome) count(s *sighting) {
	if s.Record != nil && s.err == nil {
		o.idRules[s.idRule]++
		o.tmRules[s.timeRule]++
		o.badTimes += s.badTimes
	}
}

// one judges a record and does what its verdict asks for. errCut leaves it to a later batch.
func (o *outcome) one(s *sighting, first bool) error {
	r, p := s.Record, o.p
	rec := r.Record
	n := o.attemptsAt(rec)
	if n > 0 && !p.marked {
		r.Attempt = int(n) + 1
	} else if n > 0 {
		r.Attempt = int(n)
	}
	switch err := s.err; {
	case errors.Is(err, ErrNoTopicID):
		return err // it is not the record's fault
	case err != nil:
		return o.bury(r, letterUndecodable, err, false)
	}
	var err error
	var sp engine.Savepoint
	if p.c.withWork() { // nothing else is rolled back
		if sp, err = o.tx.Savepoint(); err != nil {
			return err
		}
	}
	var res engine.Result
	if s.replayed {
		res, err = o.tx.TryReclaim(r.Event, s.generation)
	} else {
		res, err = o.tx.TryClaim(r.Event)
	}
	r.Verdict = res.Verdict
	if err != nil {
		if done, stop := o.cannotJudge(r, err, first); done || stop != nil {
			return stop
		}
	}
	switch res.Verdict {
	case engine.Claimed:
		r.Reopened = res.Record.Generation > 0
		o.lower(r)
	case engine.Duplicate:
		o.verdicts[engine.Duplicate]++
		o.lower(r)
		if p.log.Enabled(p.ctx, p.c.opt.DuplicateLevel.Level()) {
			o.notes = append(o.notes, note{rec: rec, event: r.Event, verdict: res.Verdict, record: res.Record})
		}
		return nil
	case engine.InFlight:
		o.inFlight = true
		return errCut
	case engine.TooOld:
		return o.policy(r, p.c.opt.TooOld, letterTooOld, sp, n)
	case engine.TooNew:
		return o.policy(r, p.c.opt.TooNew, letterTooNew, sp, n)
	case engine.Failed:
		o.unclaim++
		o.notes = append(o.notes, note{rec: rec, event: r.Event, verdict: res.Verdict, err: err, policy: "process"})
	}
	return o.handle(r, sp, n)
}

// newRecord returns a record to be judged. They are made a few at a time.
func (p *partition) newRecord(rec *kgo.Record) *Record {
	if len(p.spare) == 0 {
		made := make([]Record, lookAhead)
		for i := range made {
			p.spare = append(p.spare, &made[i])
		}
	}
	r := p.spare[len(p.spare)-1]
	p.spare = p.spare[:len(p.spare)-1]
	r.Record, r.Attempt = rec, 1
	return r
}

// spareRecord takes back a record that was given to no handler: handlers may keep theirs.
func (p *partition) spareRecord(r *Record) {
	if r != nil && !r.given {
		*r = Record{}
		p.spare = append(p.spare, r)
	}
}

// attemptsAt is the number of attempts at the record that are stored.
func (o *outcome) attemptsAt(rec *kgo.Record) uint32 {
	if o.tries.offset == rec.Offset {
		return o.tries.n
	}
	return 0
}

// identify finds the event of a record: for the replay of a dead letter, the one it was; otherwise by the chain.
func (o *outcome) identify(s *sighting) error {
	r, opt := s.Record, &o.p.c.opt
	r.Event.Scope = opt.Scope
	r.Event.Origin = engine.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
	id, err := opt.Identify.of(r.Record, o.p.topicID)
	if err != nil && !errors.Is(err, ErrNoID) {
		return err
	}
	if isLetter(r.Record) {
		if rep, ok := replayOf(r.Record); ok && rep.reopens(r.Record, id, opt.Group, opt.Scope, o.p.c.secret) {
			r.replay, id, err = &rep, rep.Event, nil
			s.generation, s.replayed = rep.Generation, true
		}
	}
	if err != nil {
		return err
	}
	s.badTimes = id.BadTimes
	r.idRule, r.timeRule = id.IDRule, id.TimeRule
	r.Event.ID, r.Event.Time, r.Event.LogTime = id.ID, id.Time, id.LogTime
	return nil
}

// cannotJudge says what to do when the engine has no verdict: done that nothing more is to be done, neither done nor an
// error that the record is handled without a claim.
func (o *outcome) cannotJudge(r *Record, err error, first bool) (done bool, stop error) {
	var event *engine.EventError
	switch {
	case errors.As(err, &event):
		if o.p.c.opt.Failed == FailOpen {
			return false, nil
		}
		return true, o.bury(r, letterUndecodable, err, false)
	case errors.Is(err, engine.ErrLimit) && !first:
		return true, errCut // the transaction may be full: it gets one of its own
	case errors.Is(err, engine.ErrLimit) && o.p.c.opt.Failed == FailOpen:
		return false, nil
	case errors.Is(err, engine.ErrLimit) && o.p.c.withWork():
		return true, o.attempted(r, err)
	}
	return true, err
}

// lower keeps the lowest event time of the batch.
func (o *outcome) lower(r *Record) { o.low = min(o.low, r.Event.Time.UnixMilli()) }

// policy does what the host wants done with a record that is too old or too new.
func (o *outcome) policy(r *Record, policy Policy, why letterReason, sp engine.Savepoint, n uint32) error {
	switch policy {
	case DeadLetter:
		o.verdicts[r.Verdict]++
		return o.bury(r, why, fmt.Errorf("the event's time %v is %v", r.Event.Time, r.Verdict), false)
	case Process:
		o.unclaim++
		o.notes = append(o.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, policy: "process"})
		return o.handle(r, sp, n)
	default:
		o.verdicts[r.Verdict]++
		o.notes = append(o.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, policy: "reject"})
		return nil
	}
}

// handle runs the handler with the work, or notes the record for it.
func (o *outcome) handle(r *Record, sp engine.Savepoint, n uint32) error {
	r.given = true
	work, ok := o.p.c.mode.(WithWork)
	if !ok {
		o.verdicts[r.Verdict]++
		o.claimed = append(o.claimed, r)
		o.late = true
		return nil
	}
	if o.p.exhausted(n) && !o.p.marked {
		return o.bury(r, letterAttempts, o.p.lastError(n), r.Verdict == engine.Claimed)
	}
	began := time.Since(o.began) // half the price of time.Now
	err := o.p.call(r, func(ctx context.Context) error { return work.Handle(ctx, o.tx, r) })
	o.handling += time.Since(o.began) - began
	switch {
	case err == nil:
		o.verdicts[r.Verdict]++
		if r.Reopened {
			o.reopened++
		}
		return nil
	case o.p.ctx.Err() != nil:
		return context.Cause(o.p.ctx)
	}
	if err := o.tx.RollbackTo(sp); err != nil {
		return err // this transaction is in conflict, or the engine has ended: not the handler's fault
	}
	if errors.Is(err, engine.ErrLimit) && o.done > 0 {
		return errCut // it may have been the transaction that was full: it gets one of its own
	}
	return o.attempted(r, err)
}

// attempted counts a failed attempt at the record after the prefix.
func (o *outcome) attempted(r *Record, err error) error {
	o.failed = err
	n := uint32(r.Attempt)
	if errors.As(err, new(*permanentError)) {
		n = max(n, uint32(min(uint64(o.p.c.mode.(WithWork).MaxAttempts), math.MaxUint32)))
	}
	o.tries, o.marked = attempts{offset: r.Offset, n: n}, false
	o.notes = append(o.notes, note{rec: r.Record, event: r.Event, verdict: r.Verdict, err: err, policy: "retry"})
	return errCut
}

func (p *partition) lastError(n uint32) error {
	if p.last != nil {
		return p.last
	}
	return fmt.Errorf("%d attempts in an earlier run; the process may have died in the handler", n)
}

// call runs a handler; its panic is an error.
func (p *partition) call(r *Record, fn func(ctx context.Context) error) (err error) {
	p.handling.Store(r.Record)
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return fn(traced(p.ctx, p.c.opt.Propagator, r.Record))
}

func isControl(rec *kgo.Record) bool { return rec.Attrs.IsControl() }
