package occ

import (
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/weekbucket"
)

// Reservations has the claims that open transactions hold. It is safe for concurrent use.
type Reservations struct {
	weeks Weeks
	some  atomic.Bool // the table is not empty; saves the lock if it is

	mu    sync.Mutex // guards the fields below and Claimant.mine; not held during I/O or waits
	table table
	last  weekbucket.Week // week of the last reservation, if the table is not empty
}

// Weeks is notified of the weeks in which claims are reserved. There is one call at a time.
type Weeks interface {
	// Reserve is called before a claim in the week is reserved, unless the previous one was in the
	// same week.
	Reserve(week weekbucket.Week)
	// ReleaseAll is called when no reserved claims are left.
	ReleaseAll()
}

// Init initializes r, which must be zero.
func (r *Reservations) Init(weeks Weeks) { r.weeks = weeks }

// IsHeld reports whether a transaction holds the claim.
func (r Reservation) IsHeld() bool { return r.owner != nil }

// CommitsIn returns the batch into which the transaction that holds the claim was admitted, 0 if it
// is still open or there is none.
func (r Reservation) CommitsIn() uint64 {
	if r.owner == nil {
		return 0
	}
	return r.owner.won.Load()
}

// A Claimant is a transaction, or a part of one, that makes reservations. It must be used by one
// goroutine at a time.
type Claimant struct {
	all   *Reservations
	owner *Owner       // owner of the transaction
	mine  map[Name]int // indices of a part's claims; nil if the claimant is not a part
}

// Claimant returns the claimant for the transaction of an owner.
func (r *Reservations) Claimant(o *Owner) Claimant { return Claimant{all: r, owner: o} }

// Part returns the claimant for a part of the transaction.
func (c *Claimant) Part() Claimant {
	return Claimant{all: c.all, owner: c.owner, mine: make(map[Name]int)}
}

// Win records that the transaction was admitted into a batch.
func (c *Claimant) Win(batch uint64) { c.owner.won.Store(batch) }

func (c *Claimant) isPart() bool { return c.mine != nil }

// shares reports whether only other parts of the same transaction hold the reservation.
func (c *Claimant) shares(r Reservation) bool {
	_, mine := c.mine[r.name]
	return r.owner == c.owner && r.claim == noClaim && !mine
}

// Index returns the index of a reserved claim if the claimant has made it.
func (c *Claimant) Index(r Reservation) (i int, ok bool) {
	if c.isPart() {
		i, ok = c.mine[r.name]
		return i, ok
	}
	return int(r.claim), r.owner == c.owner
}

// IndexInWhole returns the index of a reserved claim in the whole transaction, if the transaction
// itself has made it.
func (c *Claimant) IndexInWhole(r Reservation) (i int, ok bool) {
	return int(r.claim), r.owner == c.owner && r.claim != noClaim
}

// Reserve reserves a claim in a week as the claimant's claim with the given index; free reports
// success. If the claim, or one of near, is already reserved, Reserve returns that reservation.
// Parts of one transaction may reserve the same claim.
func (c *Claimant) Reserve(name Name, week weekbucket.Week, index int, near []Name) (taken Reservation, free bool) {
	r := c.all
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(near) > 0 {
		if taken = c.taken(name, near); taken.IsHeld() {
			return taken, false
		}
	}
	if r.table.n == 0 || week != r.last {
		r.last = week
		r.weeks.Reserve(week)
	}
	if taken = c.add(name, index); taken.IsHeld() {
		return taken, false
	}
	if r.table.n == 1 {
		r.some.Store(true)
	}
	return Reservation{}, true
}

// taken returns the reservation with the name, or with one of near. It prefers the transaction's
// own, and returns the zero value if there is none. The caller holds the lock.
func (c *Claimant) taken(name Name, near []Name) (taken Reservation) {
	for i := -1; i < len(near); i++ {
		if i >= 0 {
			name = near[i]
		}
		switch r := c.all.table.get(name); {
		case !r.IsHeld(), c.shares(r):
		case r.owner == c.owner:
			return r
		case !taken.IsHeld():
			taken = r
		}
	}
	return taken
}

// add makes the reservation, or returns the existing one. The caller holds the lock.
func (c *Claimant) add(name Name, index int) (taken Reservation) {
	own := Reservation{name: name, owner: c.owner, claim: int32(index)}
	if c.isPart() {
		own.claim, own.parts = noClaim, 1
	}
	if other := c.all.table.add(own); other.IsHeld() {
		if !c.shares(other) {
			return other
		}
		c.all.table.update(name, func(shared *Reservation) {
			shared.claim = max(shared.claim, own.claim)
			shared.parts += own.parts
		})
	}
	if c.isPart() {
		c.mine[name] = index
	}
	return Reservation{}
}

// Release removes reservations of claims that were undone or have committed.
func (c *Claimant) Release(names ...Name) {
	r := c.all
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.table.prefetch(name)
	}
	for _, name := range names {
		r.table.update(name, func(held *Reservation) {
			if !c.isPart() {
				held.claim = noClaim
				return
			}
			held.parts--
			delete(c.mine, name)
		})
	}
	if r.table.n == 0 {
		r.some.Store(false)
		r.weeks.ReleaseAll()
	}
}

// Join moves reservations of a part to its transaction, for its claims from index first on.
func (c *Claimant) Join(names []Name, first int) {
	r := c.all
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, name := range names {
		r.table.update(name, func(held *Reservation) {
			held.claim = int32(first + i)
			held.parts--
		})
	}
}

// HasClaimedSince reports whether the transaction has made one of the claims, with index from or
// higher.
func (c *Claimant) HasClaimedSince(names []Name, from int) bool {
	r := c.all
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if held := r.table.get(name); held.owner == c.owner && int(held.claim) >= from {
			return true
		}
	}
	return false
}

// Some reports whether there are reservations. It does not take the lock.
func (r *Reservations) Some() bool { return r.some.Load() }

// Count returns the number of reserved claims.
func (r *Reservations) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.n
}

// Get returns the reservation of a claim.
func (r *Reservations) Get(name Name) Reservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.get(name)
}

// Prefetch loads reservations into the processor's cache, so that the cache misses overlap.
func (r *Reservations) Prefetch(names []Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.table.prefetch(name)
	}
}

// CommitsIn returns the last batch into which a holder of one of the claims was admitted, 0 if
// there is none.
func (r *Reservations) CommitsIn(name Name, near []Name) (batch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch = r.table.get(name).CommitsIn()
	for _, name := range near {
		batch = max(batch, r.table.get(name).CommitsIn())
	}
	return batch
}
