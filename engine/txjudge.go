package engine

import (
	"context"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A txJudge gives verdicts on events in a transaction. The transaction's lock is held during all of
// its methods.
type txJudge struct {
	finder   *finder
	core     *core
	txFinder txFinder
	by       keyspace.Space  // who claims; zero for the application
	lazy     bool            // see UpdateOptions.AllowUnsyncedDuplicates
	ctx      context.Context // of Update: it ends the waits for others

	ahead *ahead // the result of Prefetch; nil if there was none

	sawClaims bool          // verdicts depend on claims or their absence, which are as of now and not as of the start as reads are
	effective verdictCounts // verdicts given and not rolled back
	attempts  verdictCounts // all verdicts given
	watched   *observation  // nil without an observer
}

// prefetch prepares events, in place of the previous ones.
func (j *txJudge) prefetch(events []Event) {
	if j.ahead == nil {
		j.ahead = j.txFinder.spares.newAhead()
	}
	j.ahead.empty(len(events))
	now := j.core.now()
	for i := range events {
		x := &j.ahead.expected[i]
		if j.ahead.add(j.finder, x, &events[i], now); x.ok {
			x.candidate.lock = j.core.lockName(j.ahead.set.key(&x.candidate.place))
		}
	}
}

// tryClaim judges an event; a claim that is dead-lettered with the given generation, if that is not
// nil, is open.
func (j *txJudge) tryClaim(ev *Event, reopen *uint64) (Result, error) {
	if err := j.core.works(); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	var res Result
	if done := j.watched.begin(ev); done != nil {
		defer func() { done(res) }() // also if the store panics
	}
	if err := j.judge(ev, reopen, &res); err != nil {
		res = Result{Verdict: Failed, Err: err}
	}
	j.sawClaims = j.sawClaims || res.Verdict != InFlight && res.Verdict != TooNew && res.Verdict != Failed
	j.effective[res.Verdict]++
	j.attempts[res.Verdict]++
	j.watched.note(ev, res.Verdict)
	return res, res.Err
}

func (j *txJudge) judge(ev *Event, reopen *uint64, res *Result) error {
	r := j.txFinder.req
	mark, near := len(r.claims.set.arena), len(r.claims.set.near)
	x := j.ahead.expects(j.finder, j.txFinder.reserved, ev)
	if x != nil && x.new && j.claimNew(x, ev, res) {
		return nil
	}
	if err := j.core.enter(); err != nil {
		return err
	}
	defer j.core.leave()
	var c candidate
	if x != nil {
		c = x.candidate
		r.claims.expect(&c, &j.ahead.set)
	} else {
		if !j.finder.newCandidate(&r.claims.set, &c, ev, res, j.core.now()) {
			return nil
		}
		c.lock = j.core.lockName(r.claims.set.key(&c.place))
		if ev.countsNear() {
			j.finder.addNear(&r.claims.set, &c, ev)
		}
	}
	j.txFinder.noteJudged(&c)
	keep, err := j.judgeCandidate(&c, ev, reopen, res)
	if err == nil {
		err = j.txFinder.status.lost // a part that is outdated
	}
	r.claims.set.found, r.claims.set.looked = r.claims.set.found[:0], false
	if !keep {
		r.claims.set.arena, r.claims.set.near = r.claims.set.arena[:mark], r.claims.set.near[:near]
	}
	return err
}

// claimNew claims an event of which the filters contained no claim when Prefetch read them, if that
// still holds and no transaction has reserved it. It does not read the store, and so need not keep
// the engine open.
func (j *txJudge) claimNew(x *expected, ev *Event, res *Result) bool {
	r := j.txFinder.req
	n, mark, near := len(r.claims.set.claims), len(r.claims.set.arena), len(r.claims.set.near)
	if n >= limits.TxClaims || j.core.applying.Load() != j.ahead.before {
		return false
	}
	r.claims.set.claims = append(r.claims.set.claims, x.candidate)
	c := &r.claims.set.claims[n]
	j.own(c)
	r.claims.expect(c, &j.ahead.set)
	free := false
	if len(r.claims.set.arena) <= limits.TxBytes {
		_, free = j.txFinder.take(c, r.claims.set.nearOf(c), n)
	}
	// Check again: a transaction that has committed it since released the reservation after that
	// batch was applied.
	if free && j.core.applying.Load() == j.ahead.before {
		j.txFinder.noteJudged(c)
		*res = Result{Verdict: Claimed, Record: newRecord(ev, c.seen)}
		r.claims.records = append(r.claims.records, res.Record)
		return true
	}
	if free {
		r.claimant.Release(c.lock)
	}
	r.claims.set.claims, r.claims.set.arena, r.claims.set.near = r.claims.set.claims[:n], r.claims.set.arena[:mark], r.claims.set.near[:near]
	return false
}

// judgeCandidate returns the verdict for a candidate, and keeps it if it is Claimed.
func (j *txJudge) judgeCandidate(c *candidate, ev *Event, reopen *uint64, res *Result) (keep bool, err error) {
	r := j.txFinder.req
	departed := j.core.left.changes.Load() // before anything is looked up
	s, free, asOf, err := j.reserveVisible(c, reopen)
	switch {
	case err != nil:
		return false, err
	case free:
		res.Verdict = Claimed
		j.keep(c, ev, &s, &res.Record)
		res.Lease = newLease(ev, &res.Record, c.seen)
		return true, nil
	case s.mine && j.by == (keyspace.Space{}) && j.txFinder.isOwned(&s.at):
		return false, r.belongs()
	case s.mine:
		if *res = c.answer(&s.rec); res.Verdict == Pending {
			res.Verdict = Duplicate // of its own claim
		}
		return false, nil
	case !s.found, s.winning && (!j.lazy || s.rec.State != Done), // returned without waiting for the winner
		j.core.left.has(r.claims.set.key(&s.at)):
		*res = Result{Verdict: InFlight}
		return false, nil
	}
	*res = c.answer(&s.rec)
	// If it is returned now, the claim on which it depends must be durable now; also if that may be
	// withdrawn because its caller leaves.
	if !j.lazy || j.core.left.leavable.Load() > 0 {
		if err := j.core.settleContext(j.ctx); err != nil {
			return false, err
		}
		j.finder.cache.add(r.claims.set.found, r.claims.set.arena, r.claims.set.epoch)
	}
	if j.core.left.changedSince(departed, s.at.hash) {
		*res = Result{Verdict: InFlight}
		return false, nil
	}
	// A Done claim is no read: it changes only when it is withdrawn or its week is dropped.
	if s.rec.State == DeadLettered {
		err = asLimit(r.reads.NoteAsOf(claimRead(r.claims.set.key(&s.at)), asOf))
	}
	return false, err
}

// reserveVisible reserves a candidate's name as reserve does, and returns a batch that is not after
// what it has seen. If verdicts need not be durable at once, it waits until the claim of another
// transaction in progress is visible: that is soon, and durable before this transaction.
func (j *txJudge) reserveVisible(c *candidate, reopen *uint64) (s lookup, free bool, asOf uint64, err error) {
	asOf = j.core.applied.at.Load()
	s, free, err = j.txFinder.reserve(c, reopen)
	if err != nil || free || s.found || !j.lazy {
		return s, free, asOf, err
	}
	if seq := j.txFinder.reserved.CommitsIn(c.lock, j.txFinder.locks(j.txFinder.req.claims.set.nearOf(c))); seq > 0 && j.core.applied.waitContext(j.ctx, seq) {
		asOf = j.core.applied.at.Load()
		s, free, err = j.txFinder.reserve(c, reopen)
	}
	return s, free, asOf, err
}

// keep keeps a candidate that is Claimed: a new one, or the next generation of the claim that was
// found. record becomes its record.
func (j *txJudge) keep(c *candidate, ev *Event, s *lookup, record *ClaimRecord) {
	*record = newRecord(ev, c.seen)
	if s.found {
		if !c.takes(&s.rec) { // a dead letter is replayed
			record.FirstSeen, record.SentUnixMilli, record.Origin, record.Window, record.Fingerprint = s.rec.FirstSeen, s.rec.SentUnixMilli, s.rec.Origin, s.rec.Window, s.rec.Fingerprint
		}
		record.Generation = s.rec.Generation + 1
		c.again = true
	}
	j.own(c)
	j.txFinder.req.claims.add(c, *record)
}

// own makes a candidate the owner's, if an owner claims.
func (j *txJudge) own(c *candidate) {
	if c.owned = j.by != (keyspace.Space{}); c.owned {
		j.txFinder.req.claimedBy = j.by
	}
}
