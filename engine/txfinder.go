package engine

import (
	"fmt"

	"github.com/hapax-dev/hapax/engine/limits"
)

// A txFinder finds claims as a transaction sees them, its own among them, and reserves them for it.
// The transaction's lock is held during all of its methods.
type txFinder struct {
	core   *core
	finder *finder
	status *txStatus
	others *transactions
	spares *txSpares
	req    *txRequest
	base   *base // of a part; nil for the transaction itself
}

// A sight is the result of a look-up of a claim.
type sight struct {
	rec     ClaimRecord
	at      place
	found   bool
	mine    bool // it belongs to the transaction
	winning bool // it belongs to a transaction that is committing, and is not durable yet
}

// look looks up the claim on an event, in its own week and in the others that count: first among
// the transaction's own. A claim that is free is found in the event's own week only.
func (f *txFinder) look(c *candidate) (s sight, err error) {
	s.at = c.place
	s.rec, s.found, err = f.finder.known(&f.req.claims.set, &c.place)
	if near := f.req.claims.set.nearOf(c); err == nil && (!s.found || c.takes(&s.rec)) && len(near) > 0 {
		if rec, mine, _ := f.held(c.place, c.lock); mine {
			return sight{rec: rec, at: c.place, found: true, mine: true}, nil
		}
		for _, at := range near {
			if rec, mine, _ := f.held(at, f.others.lockName(f.req.claims.set.key(&at))); mine {
				return sight{rec: rec, at: at, found: true, mine: true}, nil
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
		lock = f.others.lockName(f.req.claims.set.key(&s.at))
	}
	rec, mine, holder := f.held(s.at, lock)
	if mine { // which the transaction has reopened
		s.rec, s.mine = rec, true
	}
	s.winning = !mine && holder != nil && holder.won.Load() > 0
	return s, nil
}

// held returns the holder of the claim in a place, nil for none, and its record if the transaction
// has made it itself.
func (f *txFinder) held(at place, lock lockName) (rec ClaimRecord, mine bool, holder *owner) {
	r := f.others.holder(lock)
	rec, mine = f.own(r, f.req.claims.set.key(&at))
	return rec, mine, r.owner
}

// own returns the record of the reserved claim if the transaction has made it, under that key; for
// a part, also one that its transaction had made before the part began.
func (f *txFinder) own(r reservation, key []byte) (rec ClaimRecord, ok bool) {
	if i, ok := f.index(r, key); ok {
		return f.req.claims.records[i], true
	}
	if f.base != nil && r.owner == f.req.claimant.owner {
		return f.base.claimed(r, key)
	}
	return ClaimRecord{}, false
}

// index returns the index of the reserved claim if the transaction has made it, under that key.
func (f *txFinder) index(r reservation, key []byte) (i int, ok bool) {
	i, ok = f.req.claimant.index(r)
	return i, ok && f.req.claims.set.isClaim(i, key)
}

// isOwned reports whether the claim in a place, which is the transaction's, is that of an owner.
func (f *txFinder) isOwned(at *place) bool {
	key := f.req.claims.set.key(at)
	r := f.others.holder(f.others.lockName(key))
	if i, ok := f.index(r, key); ok {
		return f.req.claims.set.claims[i].owned
	}
	return f.base != nil && f.base.isOwned(r, f.req)
}

// claimOf returns the index of the transaction's claim on an event, ErrNotClaimed if there is none.
func (f *txFinder) claimOf(ev *Event) (i int, err error) {
	scratch := f.spares.newAhead()
	defer f.spares.freeAhead(scratch)
	c := candidate{seen: f.core.now()}
	if c.place.week, err = ev.check(f.core.opt.MaxIDBytes, c.seen); err != nil {
		return 0, err
	}
	if ev.arrives() { // now, or when it was claimed
		f.finder.addNear(&scratch.set, &c, ev)
	}
	f.finder.addPlace(&scratch.set, ev, c.place.week)
	for n := range scratch.set.near {
		key := scratch.set.key(&scratch.set.near[n])
		if i, ok := f.index(f.others.holder(f.others.lockName(key)), key); ok {
			return i, nil
		}
	}
	return 0, ErrNotClaimed
}

// reserve looks a claim up, and reserves it for the transaction if there is none or it is to be
// reopened; free reports success. Neither found nor free means that another transaction has it.
func (f *txFinder) reserve(c *candidate, reopen *uint64) (s sight, free bool, err error) {
	r := f.req
	// a claim in an adjacent week is not reopened: a replay has the time of its claim
	open := func() bool {
		switch {
		case err != nil || s.mine:
			return false
		case !s.found:
			return true
		}
		return s.at == c.place && (c.takes(&s.rec) || reopen != nil && s.rec.opens(*reopen))
	}
	before := f.core.applying.Load()
	// The reservation follows the look-up, so that a look at an old claim does not make it look
	// open to others.
	if s, err = f.look(c); !open() {
		return s, false, err
	}
	near := r.claims.set.nearOf(c)
	if s.found && !c.takes(&s.rec) {
		near = nil // the claim in its own week was decided when that was claimed
	}
	if n := len(r.claims.set.claims); n >= limits.TxClaims || len(r.claims.set.arena) > limits.TxBytes {
		if s = f.taken(f.others.holder(c.lock), c, nil); s.found {
			return s, false, nil
		}
		return s, false, fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, n, len(r.claims.set.arena))
	}
	if taken, free := f.others.reserve(c, r, len(r.claims.set.claims), near); !free {
		return f.taken(taken, c, near), false, nil
	}
	kept := false
	defer func() { // also if the store panics, and the application recovers
		if !kept {
			f.others.unreserve(c, &r.claimant)
		}
	}()
	if s.found || f.core.applying.Load() != before {
		s, err = f.look(c)
	}
	kept = open()
	return s, kept, err
}

// taken returns the visible state of a claim that cannot be reserved: that it is the transaction's
// own, or nothing.
func (f *txFinder) taken(by reservation, c *candidate, near []place) (s sight) {
	s.at = c.place
	s.rec, s.mine = f.own(by, f.req.claims.set.key(&s.at))
	for i := 0; !s.mine && i < len(near); i++ {
		s.at = near[i]
		s.rec, s.mine = f.own(by, f.req.claims.set.key(&s.at))
	}
	if !s.mine {
		return sight{}
	}
	s.found = true
	return s
}

// noteJudged records, in a part, the claims on which the verdict for a candidate depends.
func (f *txFinder) noteJudged(c *candidate) {
	if f.base == nil {
		return
	}
	f.base.judged = append(f.base.judged, c.lock)
	near := f.req.claims.set.nearOf(c)
	for i := range near {
		f.base.judged = append(f.base.judged, f.others.lockName(f.req.claims.set.key(&near[i])))
	}
}

// holdLeased returns the index of a leased claim among those of the transaction, which holds it
// afterwards.
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
	c.lock = f.others.lockName(r.claims.set.key(&c.place))
	f.noteJudged(&c)
	holder := f.others.holder(c.lock)
	if i, mine := f.index(holder, r.claims.set.key(&c.place)); mine {
		if r.claims.records[i].Owner != l.owner {
			return 0, ErrLeaseLost
		}
		return i, nil
	}
	if _, inherited := f.own(holder, r.claims.set.key(&c.place)); inherited {
		return 0, ErrNotClaimed // a part does not affect what the transaction did before it began
	} else if f.status.lost != nil {
		return 0, f.status.lost
	}
	rec, found, err := f.finder.known(&r.claims.set, &c.place)
	switch {
	case err != nil:
		return 0, err
	case !found || rec.State != Leased || rec.Owner != l.owner:
		return 0, ErrLeaseLost
	case len(r.claims.set.claims) >= limits.TxClaims || len(r.claims.set.arena) > limits.TxBytes:
		return 0, fmt.Errorf("%w: %d claims with keys of %d bytes in one transaction", ErrLimit, len(r.claims.set.claims), len(r.claims.set.arena))
	}
	if _, free := f.others.reserve(&c, r, len(r.claims.set.claims), nil); !free {
		return 0, ErrConflict // another transaction is taking it over
	}
	kept = true
	r.claims.add(&c, rec)
	return len(r.claims.set.claims) - 1, nil
}

// undo undoes the work since to. The reservations are removed before the claims.
func (f *txFinder) undo(to progress) {
	f.others.release(f.req.claims.set.claims[to.claims:], &f.req.claimant)
	f.req.claims.undo(to)
	f.req.writes.undo(to.writes)
}
