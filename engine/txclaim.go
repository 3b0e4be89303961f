package engine

import "fmt"

// TryClaim judges one event as part of the transaction. Claimed becomes true when the transaction
// commits; until then all others get InFlight. If the transaction does not commit, the event can be
// claimed again.
func (tx *Tx) TryClaim(ev Event) (Result, error) { return tx.tryClaim(&ev, nil) }

// TryClaimDefault is TryClaim in the configured default scope; ev.Scope is empty.
func (tx *Tx) TryClaimDefault(ev Event) (Result, error) {
	if err := tx.inDefaultScope(&ev); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	return tx.TryClaim(ev)
}

// TryReclaim is TryClaim for the replay of a dead letter. A durable claim on the event that is
// DeadLettered with exactly this generation is opened again: the verdict is Claimed, and the record
// that commits is Done with the next generation; FirstSeen and Origin stay those of the first
// sighting. Of transactions that open a claim at once, one at most commits: the others get
// InFlight, or fail with ErrConflict. TryClaim still returns Duplicate to others while it is open,
// as a durable claim exists. Every other existing claim is a Duplicate, and an event without a
// claim is judged as by TryClaim, so that a generation that was forged gains nothing and loses
// nothing.
func (tx *Tx) TryReclaim(ev Event, generation uint64) (Result, error) {
	return tx.tryClaim(&ev, &generation)
}

// TryReclaimDefault is TryReclaim in the configured default scope; ev.Scope is empty.
func (tx *Tx) TryReclaimDefault(ev Event, generation uint64) (Result, error) {
	if err := tx.inDefaultScope(&ev); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	return tx.TryReclaim(ev, generation)
}

// DeadLetter turns the claim that this transaction has made on an event, and not rolled back, into
// a dead-lettered one: its event was not handled, was put aside, and may be opened again by
// TryReclaim with the generation of the record that is returned, which is what commits. Doing it
// again changes nothing; going back to an earlier savepoint undoes it. Without such a claim it is
// ErrNotClaimed.
func (tx *Tx) DeadLetter(ev Event) (Record, error) {
	if err := tx.enter(); err != nil {
		return Record{}, err
	}
	defer tx.leave()
	i, err := tx.claimOf(&ev)
	if err != nil {
		return Record{}, err
	}
	if tx.req.records[i].State != DeadLettered {
		tx.alter(i, func(r *Record) { r.end(DeadLettered, "") })
	}
	return tx.req.records[i], nil
}

// DeadLetterDefault is DeadLetter in the configured default scope; ev.Scope is empty.
func (tx *Tx) DeadLetterDefault(ev Event) (Record, error) {
	if err := tx.inDefaultScope(&ev); err != nil {
		return Record{}, err
	}
	return tx.DeadLetter(ev)
}

func (tx *Tx) inDefaultScope(ev *Event) error {
	if err := tx.enter(); err != nil {
		return err
	}
	defer tx.leave()
	return tx.e.inDefaultScope(ev)
}

// tryClaim judges an event; a claim that is dead-lettered with the given generation, if that is not
// nil, is open.
func (tx *Tx) tryClaim(ev *Event, reopen *uint64) (Result, error) {
	if err := tx.lock(); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	defer tx.mu.Unlock()
	if err := tx.e.works(); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	var res Result
	if done := tx.watched.begin(ev); done != nil {
		defer func() { done(res) }() // also if the store panics
	}
	if err := tx.judge(ev, reopen, &res); err != nil {
		res = Result{Verdict: Failed, Err: err}
	}
	tx.told = tx.told || res.Verdict == Duplicate || res.Verdict == TooOld
	tx.kept[res.Verdict]++
	tx.attempts[res.Verdict]++
	tx.watched.note(ev, res.Verdict)
	return res, res.Err
}

func (tx *Tx) judge(ev *Event, reopen *uint64, res *Result) error {
	r := tx.req
	mark, near := len(r.arena), len(r.near)
	x := tx.expects(ev)
	if x != nil && x.new && tx.claimNew(x, ev, res) {
		return nil
	}
	if err := tx.e.enter(); err != nil {
		return err
	}
	defer tx.e.leave()
	var c candidate
	if x != nil {
		c = x.candidate
		tx.take(&c)
	} else {
		if !tx.e.newCandidate(&r.claimSet, &c, ev, res, tx.e.now()) {
			return nil
		}
		c.lock = tx.e.tx.lockName(r.key(&c.place))
		if ev.countsNear() {
			tx.e.addNear(&r.claimSet, &c, ev)
		}
	}
	if tx.part != nil {
		tx.part.noteJudged(&r.claimSet, &c)
	}
	keep, err := tx.judgeCandidate(&c, ev, reopen, res)
	if err == nil {
		err = tx.lost // a part that is outdated
	}
	r.found, r.looked = r.found[:0], false
	if !keep {
		r.arena, r.near = r.arena[:mark], r.near[:near]
	}
	return err
}

// claimNew claims an event of which the filters knew nothing when Prefetch asked them, if that
// still holds and no transaction has it: without a look at the store, and so without keeping the
// engine from being closed.
func (tx *Tx) claimNew(x *expected, ev *Event, res *Result) bool {
	e, r := tx.e, tx.req
	n, mark, near := len(r.claims), len(r.arena), len(r.near)
	if n >= MaxTxClaims || e.applying.Load() != tx.before {
		return false
	}
	r.claims = append(r.claims, x.candidate)
	c := &r.claims[n]
	tx.take(c)
	free := false
	if len(r.arena) <= MaxTxBytes {
		_, free = e.tx.reserve(c, tx, n, r.nearOf(c))
	}
	// Once more: who has committed it since gave the reservation back after that batch was applied.
	if free && e.applying.Load() == tx.before {
		if tx.part != nil {
			tx.part.noteJudged(&r.claimSet, c)
		}
		*res = Result{Verdict: Claimed, Record: newRecord(ev, c.seen)}
		r.records = append(r.records, res.Record)
		return true
	}
	if free {
		e.tx.unreserve(c, tx)
	}
	r.claims, r.arena, r.near = r.claims[:n], r.arena[:mark], r.near[:near]
	return false
}

// judgeCandidate returns the verdict for a candidate, and keeps it if it is Claimed.
func (tx *Tx) judgeCandidate(c *candidate, ev *Event, reopen *uint64, res *Result) (keep bool, err error) {
	e, r := tx.e, tx.req
	// What is found from here on is as of this batch or a later one.
	asOf := e.applied.at.Load()
	s, free, err := tx.reserve(c, reopen)
	if err == nil && !free && !s.found && tx.lazy {
		if seq := e.tx.winner(&r.claimSet, c); seq > 0 && e.applied.wait(seq) { // it shows in a moment, and is durable before this transaction
			asOf = e.applied.at.Load()
			s, free, err = tx.reserve(c, reopen)
		}
	}
	switch {
	case err != nil:
		return false, err
	case free:
		res.Verdict = Claimed
		tx.keep(c, ev, &s, &res.Record)
		res.Lease = newLease(ev, &res.Record, c.seen)
		return true, nil
	case s.mine:
		if *res = c.answer(&s.rec); res.Verdict == Pending {
			res.Verdict = Duplicate // of its own claim
		}
		return false, nil
	case !s.found, s.winning && (!tx.lazy || s.rec.State != Done): // returned without waiting for the winner
		*res = Result{Verdict: InFlight}
		return false, nil
	}
	*res = c.answer(&s.rec)
	if !tx.lazy { // it is returned now, so what it rests on has to be durable now
		if err := e.settle(); err != nil {
			return false, err
		}
		e.recent.add(r.found, r.arena, r.epoch)
	}
	if s.rec.State == DeadLettered {
		err = tx.noteRead(claimRead(r.key(&s.at)), asOf)
	}
	return false, err
}

// A sight is what a look at the claims found.
type sight struct {
	rec     Record
	at      place
	found   bool
	mine    bool // it is the transaction's own
	winning bool // it is that of a transaction that is committing, and not durable yet
}

// look looks for the claim on an event, in its own week and where else it counts: among the
// transaction's own first. A claim that is free is found in the event's own week only.
func (tx *Tx) look(c *candidate) (s sight, err error) {
	s.at = c.place
	s.rec, s.found, err = tx.e.known(&tx.req.claimSet, &c.place)
	if near := tx.req.nearOf(c); err == nil && (!s.found || c.takes(&s.rec)) && len(near) > 0 {
		if rec, mine, _ := tx.held(c.place, c.lock); mine {
			return sight{rec: rec, at: c.place, found: true, mine: true}, nil
		}
		for _, at := range near {
			if rec, mine, _ := tx.held(at, tx.e.tx.lockName(tx.req.key(&at))); mine {
				return sight{rec: rec, at: at, found: true, mine: true}, nil
			}
		}
		if rec, at, there, nearErr := tx.e.knownNear(&tx.req.claimSet, c); there || nearErr != nil {
			s.rec, s.at, s.found, err = rec, at, there, nearErr
		}
	}
	if err != nil || !s.found {
		return s, err
	}
	lock := c.lock
	if s.at != c.place {
		lock = tx.e.tx.lockName(tx.req.key(&s.at))
	}
	rec, mine, holder := tx.held(s.at, lock)
	if mine { // which it has opened again
		s.rec, s.mine = rec, true
	}
	s.winning = !mine && holder != nil && holder.won.Load() > 0
	return s, nil
}

// held returns the holder of the claim in a place, nil for none, and its record if the transaction
// has made it itself.
func (tx *Tx) held(at place, lock lockName) (rec Record, mine bool, holder *owner) {
	r := tx.e.tx.holder(lock)
	rec, mine = tx.own(r, tx.req.key(&at))
	return rec, mine, r.owner
}

// own returns the record of the claim that is reserved, if it is one that the transaction has made,
// under that key; for a part, also one that the whole had made before the part began.
func (tx *Tx) own(r reservation, key []byte) (rec Record, ok bool) {
	if i, ok := tx.index(r, key); ok {
		return tx.req.records[i], true
	}
	if tx.part != nil {
		return tx.part.inherited(r, key)
	}
	return Record{}, false
}

// index returns the index of the claim that is reserved, if it is one that the transaction has
// made, under that key.
func (tx *Tx) index(r reservation, key []byte) (i int, ok bool) {
	i, ok = int(r.claim), r.owner == &tx.owner
	if tx.part != nil {
		i, ok = tx.part.mine[r.name]
	}
	return i, ok && tx.req.isClaim(i, key)
}

// claimOf returns the index of the claim that the transaction has made on an event, ErrNotClaimed
// if there is none.
func (tx *Tx) claimOf(ev *Event) (i int, err error) {
	e, scratch := tx.e, tx.e.reused.newAhead()
	defer e.reused.freeAhead(scratch)
	c := candidate{seen: e.now()}
	if c.week, err = ev.check(e.opt.MaxIDBytes, c.seen); err != nil {
		return 0, err
	}
	if ev.arrives() { // now, or when it was claimed
		e.addNear(&scratch.claimSet, &c, ev)
	}
	e.addPlace(&scratch.claimSet, ev, c.week)
	for j := range scratch.near {
		key := scratch.key(&scratch.near[j])
		if i, ok := tx.index(e.tx.holder(e.tx.lockName(key)), key); ok {
			return i, nil
		}
	}
	return 0, ErrNotClaimed
}

// reserve looks a claim up, and takes it for the transaction if there is none or it is to be opened
// again: free says that it has it now. Neither found nor free means that another transaction has
// it.
func (tx *Tx) reserve(c *candidate, reopen *uint64) (s sight, free bool, err error) {
	e, r := tx.e, tx.req
	open := func() bool { // a claim in a neighbouring week is not opened: a replay has the time of its claim
		switch {
		case err != nil || s.mine:
			return false
		case !s.found:
			return true
		}
		return s.at == c.place && (c.takes(&s.rec) || reopen != nil && s.rec.opens(*reopen))
	}
	before := e.applying.Load()
	// The reservation comes after the look, so that looking at an old claim does not make it look
	// open to others.
	if s, err = tx.look(c); !open() {
		return s, false, err
	}
	near := r.nearOf(c)
	if s.found && !c.takes(&s.rec) {
		near = nil // what there is in its own week was decided when that was claimed
	}
	if n := len(r.claims); n >= MaxTxClaims || len(r.arena) > MaxTxBytes {
		if s = tx.taken(e.tx.holder(c.lock), c, nil); s.found {
			return s, false, nil
		}
		return s, false, fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, n, len(r.arena))
	}
	if taken, free := e.tx.reserve(c, tx, len(r.claims), near); !free {
		return tx.taken(taken, c, near), false, nil
	}
	kept := false
	defer func() { // also if the store panics, and the application recovers
		if !kept {
			e.tx.unreserve(c, tx)
		}
	}()
	if s.found || e.applying.Load() != before {
		s, err = tx.look(c)
	}
	kept = open()
	return s, kept, err
}

// taken is what is seen of a claim that cannot be reserved: that it is the transaction's own, or
// nothing.
func (tx *Tx) taken(by reservation, c *candidate, near []place) (s sight) {
	s.at = c.place
	s.rec, s.mine = tx.own(by, tx.req.key(&s.at))
	for i := 0; !s.mine && i < len(near); i++ {
		s.at = near[i]
		s.rec, s.mine = tx.own(by, tx.req.key(&s.at))
	}
	if !s.mine {
		return sight{}
	}
	s.found = true
	return s
}

// keep takes a candidate that is Claimed: a new one, or the next life of the claim that was found.
// told gets its record.
func (tx *Tx) keep(c *candidate, ev *Event, s *sight, told *Record) {
	*told = newRecord(ev, c.seen)
	if s.found {
		if !c.takes(&s.rec) { // a dead letter is replayed
			told.FirstSeen, told.Origin, told.Window, told.Fingerprint = s.rec.FirstSeen, s.rec.Origin, s.rec.Window, s.rec.Fingerprint
		}
		told.Generation = s.rec.Generation + 1
		c.again = true
	}
	r := tx.req
	r.claims = append(r.claims, *c)
	r.records = append(r.records, *told)
}
