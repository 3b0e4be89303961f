package engine

import (
	"context"

	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A txJudge judges events in a transaction. Its methods must be called with the transaction's lock
// held.
type txJudge struct {
	finder   *finder
	core     *core
	txFinder txFinder
	by       keyspace.Space  // the owner that claims; zero for the application
	lazy     bool            // see UpdateOptions.AllowUnsyncedDuplicates
	ctx      context.Context // of Update; ends waits for other transactions

	ahead *ahead // the result of Prefetch; nil if it was not called

	sawClaims bool          // verdicts depend on current claims, unlike reads, which are as of the start
	effective verdictCounts // verdicts given and not rolled back
	attempts  verdictCounts // all verdicts given
	watched   *observation  // nil without an observer
}

// prefetch prepares events and replaces the previous ones.
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

// tryClaim judges an event. If reopen is not nil, a claim that is dead-lettered with that
// generation may be reopened.
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
		err = j.txFinder.status.lost // an outdated part
	}
	r.claims.set.found, r.claims.set.looked = r.claims.set.found[:0], false
	if !keep {
		r.claims.set.arena, r.claims.set.near = r.claims.set.arena[:mark], r.claims.set.near[:near]
	}
	return err
}

// claimNew claims an event that the filters showed to be new when they were last read, if no batch
// was applied since and no transaction has reserved it. It does not read the store, so it needs no
// core.enter.
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
	// Check again: a transaction that has committed the claim meanwhile released its reservation
	// after that batch was applied.
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

// judgeCandidate judges a candidate, and adds it to the transaction's claims if the verdict is
// Claimed. Then keep is true.
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
			res.Verdict = Duplicate // the transaction's own claim
		}
		return false, nil
	case !s.found, s.winning && (!j.lazy || s.rec.State != Done), // without waiting for the other transaction
		j.core.left.has(r.claims.set.key(&s.at)):
		*res = Result{Verdict: InFlight}
		return false, nil
	}
	*res = c.answer(&s.rec)
	// The claim on which the verdict depends must be durable now, unless the transaction is lazy
	// and no caller can leave its claim.
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
	// A Done claim is not recorded as a read: it changes only when its window ends, it is
	// withdrawn, or its week is dropped.
	if s.rec.State == DeadLettered {
		err = asLimit(r.reads.NoteAsOf(claimRead(r.claims.set.key(&s.at)), asOf))
	}
	return false, err
}

// reserveVisible is reserve, and also returns a batch that is not later than what reserve has seen.
// In a lazy transaction it waits until the claim of another committing transaction is visible: that
// is soon, and the claim is durable before this transaction.
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

// keep adds a claimed candidate to the transaction's claims: a new claim, or the next generation of
// the claim that was found. It sets record to the claim's record.
func (j *txJudge) keep(c *candidate, ev *Event, s *lookup, record *ClaimRecord) {
	*record = newRecord(ev, c.seen)
	if s.found {
		if !c.takes(&s.rec) { // the replay of a dead letter
			record.FirstSeen, record.SentUnixMilli, record.Origin, record.Window, record.Fingerprint = s.rec.FirstSeen, s.rec.SentUnixMilli, s.rec.Origin, s.rec.Window, s.rec.Fingerprint
		}
		record.Generation = s.rec.Generation + 1
		c.again = true
	}
	j.own(c)
	j.txFinder.req.claims.add(c, *record)
}

// own marks a candidate as the owner's if an owner claims.
func (j *txJudge) own(c *candidate) {
	if c.owned = j.by != (keyspace.Space{}); c.owned {
		j.txFinder.req.claimedBy = j.by
	}
}
