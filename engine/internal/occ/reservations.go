package occ

import (
	"sync"
	"sync/atomic"

	"github.com/hapax-dev/hapax/weekbucket"
)

// Reservations are the claims that open transactions hold. They are safe for concurrent use.
type Reservations struct {
	weeks Weeks
	some  atomic.Bool // there are some, so that the lock is not taken when there are none

	mu    sync.Mutex // guards all below, and the claims of parts; no I/O and no waiting under it
	table table
	last  weekbucket.Week // of the last reservation, if the table is not empty
}

// Weeks is told in which weeks claims are reserved, by one call at a time.
type Weeks interface {
	// Reserve is called before a claim in the week is reserved, unless the one before it was in
	// the same week.
	Reserve(week weekbucket.Week)
	// ReleaseAll is called when no claim is reserved any more.
	ReleaseAll()
}

// Init makes r, which is zero, usable.
func (r *Reservations) Init(weeks Weeks) { r.weeks = weeks }

// IsHeld reports whether a transaction holds the claim.
func (r Reservation) IsHeld() bool { return r.owner != nil }

// CommitsIn returns the batch into which the transaction that holds the claim is admitted, 0 if there
// is none, or it is still open.
func (r Reservation) CommitsIn() uint64 {
	if r.owner == nil {
		return 0
	}
	return r.owner.won.Load()
}

// A Claimant makes reservations: a transaction, or a part of one. One goroutine at a time may use it.
type Claimant struct {
	all   *Reservations
	owner *Owner       // that of the transaction
	mine  map[Name]int // of a part: its claims, to their indices; nil for the transaction itself
}

// Claimant returns the claimant for the transaction of an owner.
func (r *Reservations) Claimant(o *Owner) Claimant { return Claimant{all: r, owner: o} }

// Part returns the claimant for a part of the transaction.
func (c *Claimant) Part() Claimant {
	return Claimant{all: c.all, owner: c.owner, mine: make(map[Name]int)}
}

// Win records that the transaction is admitted into a batch.
func (c *Claimant) Win(batch uint64) { c.owner.won.Store(batch) }

func (c *Claimant) isPart() bool { return c.mine != nil }

// shares reports whether only other parts of the same transaction hold the reservation.
func (c *Claimant) shares(r Reservation) bool {
	_, mine := c.mine[r.name]
	return r.owner == c.owner && r.claim == noClaim && !mine
}

// Index returns the index of the reserved claim, if the claimant has made it.
func (c *Claimant) Index(r Reservation) (i int, ok bool) {
	if c.isPart() {
		i, ok = c.mine[r.name]
		return i, ok
	}
	return int(r.claim), r.owner == c.owner
}

// IndexInWhole returns the index of the reserved claim among those of the transaction, if that has
// made it.
func (c *Claimant) IndexInWhole(r Reservation) (i int, ok bool) {
	return int(r.claim), r.owner == c.owner && r.claim != noClaim
}

// Reserve takes a claim in a week, as the one with the given index; free reports success. If the
// claim, or one with the names near, is taken, it returns that reservation. A claim that only other
// parts of the same transaction hold is not taken.
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

// taken returns the reservation with the name, or with one of those near: the transaction's own
// before that of another, and the zero value if there is neither. The lock is held.
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

// add makes the reservation, or returns the one that is taken. The lock is held.
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

// Release removes reservations, of claims that were undone or have committed.
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

// Join moves reservations of a part to its transaction, as its claims from the given index on.
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

// HasClaimedSince reports whether the transaction has one of the claims, with an index from the
// given one on.
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

// Some reports, without the lock, whether there are reservations.
func (r *Reservations) Some() bool { return r.some.Load() }

// Count returns how many claims are reserved.
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

// Prefetch loads reservations into the processor's cache: their cache misses overlap.
func (r *Reservations) Prefetch(names []Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.table.prefetch(name)
	}
}

// CommitsIn returns the last batch into which a transaction that holds one of the claims is admitted,
// 0 if there is none.
func (r *Reservations) CommitsIn(name Name, near []Name) (batch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch = r.table.get(name).CommitsIn()
	for _, name := range near {
		batch = max(batch, r.table.get(name).CommitsIn())
	}
	return batch
}
