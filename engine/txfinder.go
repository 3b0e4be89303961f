package engine

import "github.com/hapax-dev/hapax/engine/internal/occ"

// A txFinder finds claims for a transaction, including the transaction's own, and reserves them.
// Its methods must be called with the transaction's lock held.
type txFinder struct {
	core     *core
	finder   *finder
	status   *txStatus
	reserved *occ.Reservations
	spares   *txSpares
	req      *txRequest
	base     *base      // of a part; nil if there is no part
	near     []occ.Name // see locks
}

// A lookup is the result of looking up a claim.
type lookup struct {
	rec     ClaimRecord
	at      place
	found   bool
	mine    bool // the claim belongs to the transaction
	winning bool // the claim belongs to another transaction, which is committing
}

// isOpen reports whether the transaction may claim the candidate: there is no claim, or the
// candidate replaces it, or it is a dead letter with the generation to reopen.
func (s *lookup) isOpen(c *candidate, reopen *uint64) bool {
	switch {
	case s.mine:
		return false
	case !s.found:
		return true
	}
	// a claim in an adjacent week is not reopened, since a replay has the time of its claim
	return s.at == c.place && (c.takes(&s.rec) || reopen != nil && s.rec.opens(*reopen))
}

// lookUp looks up the claim on an event in its own week and its adjacent places, first among the
// transaction's claims. A claim that the candidate can replace is found only in the event's own
// week.
func (f *txFinder) lookUp(c *candidate) (s lookup, err error) {
	s.at = c.place
	s.rec, s.found, err = f.finder.known(&f.req.claims.set, &c.place)
	if near := f.req.claims.set.nearOf(c); err == nil && (!s.found || c.takes(&s.rec)) && len(near) > 0 {
		if rec, mine, _ := f.held(c.place, c.lock); mine {
			return lookup{rec: rec, at: c.place, found: true, mine: true}, nil
		}
		for _, at := range near {
			if rec, mine, _ := f.held(at, f.core.lockName(f.req.claims.set.key(&at))); mine {
				return lookup{rec: rec, at: at, found: true, mine: true}, nil
			}
		}
		if rec, at, there, nearErr := f.finder.knownNear(&f.req.claims.set, c); there || nearErr != nil {
			s.rec, s.at, s.found, err = rec, at, there, nearErr
		}
	}
	if err != nil || !s.found {
		return s, err
	}
	lock := c.lock
	if s.at != c.place {
		lock = f.core.lockName(f.req.claims.set.key(&s.at))
	}
	rec, mine, holder := f.held(s.at, lock)
	if mine { // the transaction has reopened the claim
		s.rec, s.mine = rec, true
	}
	s.winning = !mine && holder.CommitsIn() > 0
	return s, nil
}

// held returns the reservation of the claim in a place, and the claim's record if the transaction
// has made it.
func (f *txFinder) held(at place, lock occ.Name) (rec ClaimRecord, mine bool, r occ.Reservation) {
	r = f.reserved.Get(lock)
	rec, mine = f.own(r, f.req.claims.set.key(&at))
	return rec, mine, r
}

// own returns the record of the reserved claim if it has that key and the transaction has made it,
// or, for a part, its transaction before the part began.
func (f *txFinder) own(r occ.Reservation, key []byte) (rec ClaimRecord, ok bool) {
	if i, ok := f.index(r, key); ok {
		return f.req.claims.records[i], true
	}
	if f.base != nil {
		if i, ok := f.req.claimant.IndexInWhole(r); ok {
			return f.base.claimed(i, key)
		}
	}
	return ClaimRecord{}, false
}

// index returns the index of the reserved claim if it has that key and the transaction has made it.
func (f *txFinder) index(r occ.Reservation, key []byte) (i int, ok bool) {
	i, ok = f.req.claimant.Index(r)
	return i, ok && f.req.claims.set.isClaim(i, key)
}

// isOwned reports whether the transaction's claim in a place belongs to an owner.
func (f *txFinder) isOwned(at *place) bool {
	key := f.req.claims.set.key(at)
	r := f.reserved.Get(f.core.lockName(key))
	if i, ok := f.index(r, key); ok {
		return f.req.claims.set.claims[i].owned
	}
	i, ok := f.req.claimant.IndexInWhole(r)
	return ok && f.base != nil && f.base.isOwned(i, f.req)
}

// claimOf returns the index of the transaction's claim on an event, or ErrNotClaimed.
func (f *txFinder) claimOf(ev *Event) (i int, err error) {
	scratch := f.spares.newAhead()
	defer f.spares.freeAhead(scratch)
	c := candidate{seen: f.core.now()}
	if c.place.week, err = ev.check(f.core.opt.MaxIDBytes, c.seen); err != nil {
		return 0, err
	}
	if ev.arrives() { // the claim may be from an earlier week
		f.finder.addNear(&scratch.set, &c, ev)
	}
	f.finder.addPlace(&scratch.set, ev, c.place.week)
	for n := range scratch.set.near {
		key := scratch.set.key(&scratch.set.near[n])
		if i, ok := f.index(f.reserved.Get(f.core.lockName(key)), key); ok {
			return i, nil
		}
	}
	return 0, ErrNotClaimed
}

// reserve looks up a claim, and reserves it for the transaction if isOpen. free reports success. If
// the claim is neither found nor free, another transaction has reserved it.
func (f *txFinder) reserve(c *candidate, reopen *uint64) (s lookup, free bool, err error) {
	before := f.core.applying.Load()
	// Reserve only after the look-up: a reservation says that no claim has committed yet, and
	// others must not see one for an existing claim.
	s, err = f.lookUp(c)
	if err != nil || !s.isOpen(c, reopen) {
		return s, false, err
	}
	if err = f.req.checkClaims(); err != nil {
		if s = f.taken(f.reserved.Get(c.lock), c, nil); s.found {
			err = nil
		}
		return s, false, err
	}
	near := f.req.claims.set.nearOf(c)
	if s.found && !c.takes(&s.rec) {
		near = nil // the adjacent weeks were checked when the old claim was made
	}
	if taken, free := f.take(c, near, len(f.req.claims.set.claims)); !free {
		return f.taken(taken, c, near), false, nil
	}
	if !s.found && f.core.applying.Load() == before {
		return s, true, nil
	}
	return f.confirm(c, reopen)
}

// confirm repeats the look-up after the reservation, and releases the reservation unless the claim
// is still open.
func (f *txFinder) confirm(c *candidate, reopen *uint64) (s lookup, free bool, err error) {
	defer func() { // also if the store panics, and the application recovers
		if !free {
			f.req.claimant.Release(c.lock)
		}
	}()
	s, err = f.lookUp(c)
	return s, err == nil && s.isOpen(c, reopen), err
}

// take reserves a candidate as the claim with the given index, unless its place or one of near is
// reserved.
func (f *txFinder) take(c *candidate, near []place, index int) (taken occ.Reservation, free bool) {
	return f.req.claimant.Reserve(c.lock, c.place.week, index, f.locks(near))
}

// locks returns the names of the reservations of places, valid until the next call.
func (f *txFinder) locks(places []place) []occ.Name {
	f.near = f.near[:0]
	for i := range places {
		f.near = append(f.near, f.core.lockName(f.req.claims.set.key(&places[i])))
	}
	return f.near
}

// taken returns the look-up of a claim that cannot be reserved: the transaction's own claim, or
// nothing.
func (f *txFinder) taken(by occ.Reservation, c *candidate, near []place) (s lookup) {
	s.at = c.place
	s.rec, s.mine = f.own(by, f.req.claims.set.key(&s.at))
	for i := 0; !s.mine && i < len(near); i++ {
		s.at = near[i]
		s.rec, s.mine = f.own(by, f.req.claims.set.key(&s.at))
	}
	if !s.mine {
		return lookup{}
	}
	s.found = true
	return s
}

// noteJudged records, for a part, the claims on which the verdict on a candidate depends.
func (f *txFinder) noteJudged(c *candidate) {
	if f.base == nil {
		return
	}
	f.base.judged = append(append(f.base.judged, c.lock), f.locks(f.req.claims.set.nearOf(c))...)
}

// holdLeased adds the claim of a lease to those of the transaction, if necessary, and returns its
// index.
func (f *txFinder) holdLeased(l *Lease) (i int, err error) {
	r := f.req
	keys, near, kept := len(r.claims.set.arena), len(r.claims.set.near), false
	defer func() {
		r.claims.set.found, r.claims.set.looked = r.claims.set.found[:0], false
		if !kept {
			r.claims.set.arena, r.claims.set.near = r.claims.set.arena[:keys], r.claims.set.near[:near]
		}
	}()
	c, err := f.finder.leased(&r.claims.set, l)
	if err != nil {
		return 0, err
	}
	c.lock = f.core.lockName(r.claims.set.key(&c.place))
	f.noteJudged(&c)
	holder := f.reserved.Get(c.lock)
	if i, mine := f.index(holder, r.claims.set.key(&c.place)); mine {
		if r.claims.records[i].Owner != l.owner {
			return 0, ErrLeaseLost
		}
		return i, nil
	}
	if _, inherited := f.own(holder, r.claims.set.key(&c.place)); inherited {
		return 0, ErrNotClaimed // a part cannot change a claim that its transaction made before the part began
	} else if f.status.lost != nil {
		return 0, f.status.lost
	}
	rec, found, err := f.finder.known(&r.claims.set, &c.place)
	switch {
	case err != nil:
		return 0, err
	case !found || rec.State != Leased || rec.Owner != l.owner:
		return 0, ErrLeaseLost
	}
	if err := r.checkClaims(); err != nil {
		return 0, err
	}
	if _, free := f.take(&c, nil, len(r.claims.set.claims)); !free {
		return 0, ErrConflict // another transaction is taking it over
	}
	kept = true
	r.claims.add(&c, rec)
	return len(r.claims.set.claims) - 1, nil
}

// undo undoes everything since to. It removes the reservations before the claims.
func (f *txFinder) undo(to progress) {
	f.req.release(f.req.claims.set.claims[to.claims:])
	f.req.claims.undo(to)
	f.req.writes.undo(to.writes)
}
