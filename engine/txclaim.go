package engine

import "fmt"

// TryClaim judges one event as part of the transaction. Claimed becomes true when the transaction commits; until then
// everybody else is told InFlight. If the transaction does not commit, the event can be claimed again.
func (tx *Tx) TryClaim(ev Event) (Result, error) { return tx.tryClaim(&ev, nil) }

// TryClaimDefault is TryClaim in the configured default scope; ev.Scope is empty.
func (tx *Tx) TryClaimDefault(ev Event) (Result, error) {
	if err := tx.inDefaultScope(&ev); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	return tx.TryClaim(ev)
}

// TryReclaim is TryClaim for the replay of a dead letter. A durable claim on the event that is DeadLettered with exactly
// this generation is opened again: the verdict is Claimed, and the record that commits is Done with the next generation;
// FirstSeen and Origin stay those of the first sighting. Of transactions that open a claim at once, one at most
// commits: the others are told InFlight, or lose with ErrConflict. TryClaim goes on to tell
// others Duplicate while it is open, as a durable claim exists. Every other existing claim is a Duplicate, and an event without a
// claim is judged as by TryClaim, so that a generation that was made up gains nothing and loses nothing.
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

// DeadLetter turns the claim that this transaction has made on an event, and not rolled back, into a dead-lettered one:
// its event was not handled, was put aside, and may be opened again by TryReclaim with the generation of the record
// that is returned, which is what commits. Doing it again changes nothing; going back to an earlier savepoint undoes it.
// Without such a claim it is ErrNotClaimed.
func (tx *Tx) DeadLetter(ev Event) (Record, error) {
	if err := tx.enter(); err != nil {
		return Record{}, err
	}
	defer tx.leave()
	week, err := ev.check(tx.e.opt.MaxIDBytes)
	if err != nil {
		return Record{}, err
	}
	key := Bucket{ev.Scope, week}.AppendKey(nil, ev.ID)
	i, ok := tx.own(tx.e.tx.holder(tx.e.tx.lockName(key)), key)
	if !ok {
		return Record{}, ErrNotClaimed
	}
	rec := &tx.req.records[i]
	if rec.State != DeadLettered {
		rec.State = DeadLettered
		tx.letters = append(tx.letters, i)
	}
	return *rec, nil
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

// tryClaim judges an event; a claim that is dead-lettered with the given generation, if that is not nil, is open.
func (tx *Tx) tryClaim(ev *Event, reopen *uint64) (Result, error) {
	if err := tx.lock(); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	defer tx.mu.Unlock()
	if err := tx.e.works(); err != nil {
		return Result{Verdict: Failed, Err: err}, err
	}
	var res Result
	if o := tx.e.opt.Observer; o != nil {
		if done := o.Claiming(tx.ctx, []Event{*ev}); done != nil {
			defer func() { done([]Result{res}) }()
		}
	}
	if err := tx.judge(ev, reopen, &res); err != nil {
		res = Result{Verdict: Failed, Err: err}
	}
	tx.told = tx.told || res.Verdict == Duplicate || res.Verdict == TooOld
	tx.verdicts[res.Verdict]++
	return res, res.Err
}

func (tx *Tx) judge(ev *Event, reopen *uint64, res *Result) error {
	r := tx.req
	mark, near := len(r.arena), len(r.near)
	x := tx.expects(ev)
	if x != nil && x.new && tx.claimNew(x, ev.Origin, res) {
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
		if !tx.e.newCandidate(r, &c, ev, res, tx.e.now()) {
			return nil
		}
		c.lock = tx.e.tx.lockName(r.key(&c.place))
		if ev.LogTime {
			tx.e.addNear(r, &c, ev)
		}
	}
	keep, err := tx.judgeCandidate(&c, ev.Origin, reopen, res)
	r.found, r.looked = r.found[:0], false
	if !keep {
		r.arena, r.near = r.arena[:mark], r.near[:near]
	}
	return err
}

// claimNew claims an event of which the filters knew nothing when Prefetch asked them, if that still holds and nobody has it:
// without a look at the store, and so without keeping the engine from being closed.
func (tx *Tx) claimNew(x *expected, origin Origin, res *Result) bool {
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
		*res = Result{Verdict: Claimed, Record: newRecord(origin, c.seen)}
		r.records = append(r.records, res.Record)
		return true
	}
	if free {
		e.tx.unreserve(c)
	}
	r.claims, r.arena, r.near = r.claims[:n], r.arena[:mark], r.near[:near]
	return false
}

// judgeCandidate tells the verdict for a candidate, and keeps it if it is Claimed.
func (tx *Tx) judgeCandidate(c *candidate, origin Origin, reopen *uint64, res *Result) (keep bool, err error) {
	e, r := tx.e, tx.req
	// What is found from here on is as of this batch or a later one.
	asOf := e.applied.at.Load()
	s, free, err := tx.reserve(c, reopen)
	if err == nil && !free && !s.found && tx.lazy {
		if seq := e.tx.winner(r, c); seq > 0 && e.applied.wait(seq) { // it shows in a moment, and is durable before this transaction
			asOf = e.applied.at.Load()
			s, free, err = tx.reserve(c, reopen)
		}
	}
	switch {
	case err != nil:
		return false, err
	case free:
		res.Verdict = Claimed
		tx.keep(c, origin, &s, &res.Record)
		return true, nil
	case s.mine:
		*res = Result{Verdict: Duplicate, Record: s.rec}
		return false, nil
	case !s.found, s.winning && (!tx.lazy || s.rec.State != Done): // told without waiting for the winner
		*res = Result{Verdict: InFlight}
		return false, nil
	}
	*res = Result{Verdict: Duplicate, Record: s.rec}
	if !tx.lazy { // it is told now, so what it rests on has to be durable now
		if err := e.settle(); err != nil {
			return false, err
		}
		e.recent.add(r.found, r.arena, r.epoch)
	}
	if s.rec.State != Done {
		tx.readClaim(r.key(&s.at), asOf)
	}
	return false, nil
}

// A sight is what a look at the claims found.
type sight struct {
	rec     Record
	at      place
	found   bool
	mine    bool // it is the transaction's own
	winning bool // it is that of a transaction that is committing, and not durable yet
}

// look looks for the claim on an event, in its own week and where else it counts: among the transaction's own first.
func (tx *Tx) look(c *candidate) (s sight, err error) {
	s.at = c.place
	s.rec, s.found, err = tx.e.known(tx.req, &c.place)
	if near := tx.req.nearOf(c); err == nil && !s.found && len(near) > 0 {
		if s.rec, s.mine, _ = tx.held(c.place, c.lock); s.mine {
			s.found = true
			return s, nil
		}
		for _, s.at = range near {
			if s.rec, s.mine, _ = tx.held(s.at, tx.e.tx.lockName(tx.req.key(&s.at))); s.mine {
				s.found = true
				return s, nil
			}
		}
		s.rec, s.at, s.found, err = tx.e.knownNear(tx.req, c)
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

// held returns who holds the claim in a place, nil for nobody, and its record if the transaction has made it itself.
func (tx *Tx) held(at place, lock lockName) (rec Record, mine bool, holder *Tx) {
	r := tx.e.tx.holder(lock)
	i, mine := tx.own(r, tx.req.key(&at))
	if mine {
		rec = tx.req.records[i]
	}
	return rec, mine, r.tx
}

// own returns the index of the claim that is reserved, if it is one that the transaction has made, under that key.
func (tx *Tx) own(r reservation, key []byte) (i int, ok bool) {
	i = r.claim
	return i, r.tx == tx && i < len(tx.req.claims) && string(tx.req.key(&tx.req.claims[i].place)) == string(key)
}

// reserve looks a claim up, and takes it for the transaction if there is none or it is to be opened again: free says that
// it has it now. Neither found nor free means that another transaction has it.
func (tx *Tx) reserve(c *candidate, reopen *uint64) (s sight, free bool, err error) {
	e, r := tx.e, tx.req
	open := func() bool { // a claim in a neighbouring week is not opened: a replay has the time of its claim
		return err == nil && (!s.found || reopen != nil && !s.mine && s.rec.opens(*reopen) && s.at == c.place)
	}
	before := e.applying.Load()
	// The reservation comes after the look, so that looking at an old claim does not make it look open to others.
	if s, err = tx.look(c); !open() {
		return s, false, err
	}
	near := r.nearOf(c)
	if s.found {
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
	defer func() { // also if the store panics, and the host recovers
		if !kept {
			e.tx.unreserve(c)
		}
	}()
	if s.found || e.applying.Load() != before {
		s, err = tx.look(c)
	}
	kept = open()
	return s, kept, err
}

// taken is what is seen of a claim that cannot be reserved: that it is the transaction's own, or nothing.
func (tx *Tx) taken(by reservation, c *candidate, near []place) (s sight) {
	s.at = c.place
	claim, ok := tx.own(by, tx.req.key(&s.at))
	for i := 0; !ok && i < len(near); i++ {
		s.at = near[i]
		claim, ok = tx.own(by, tx.req.key(&s.at))
	}
	if !ok {
		return sight{}
	}
	s.rec, s.found, s.mine = tx.req.records[claim], true, true
	return s
}

// keep takes a candidate that is Claimed: a new one, or the next life of the claim that was found. told gets its record.
func (tx *Tx) keep(c *candidate, origin Origin, s *sight, told *Record) {
	*told = newRecord(origin, c.seen)
	if s.found {
		*told = s.rec
		told.State = Done
		told.Generation++
	}
	r := tx.req
	r.claims = append(r.claims, *c)
	r.records = append(r.records, *told)
}

// readClaim notes that the transaction rests on a claim that may change.
func (tx *Tx) readClaim(key []byte, asOf uint64) {
	name := claimRead(key)
	if _, ok := tx.reads[name]; !ok {
		tx.reads[name] = asOf
	}
}
