package engine

import (
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// A lockName is the name of a reservation: a hash of 128 bits of the claim's key, so that no key is
// copied. Two keys with the same hash, which have a probability of 2^-128, would only keep each
// other InFlight: a reservation says that no claim has committed yet.
type lockName = xxh3.Uint128

// reservations are the claims that open transactions hold: an open-addressed hash table with linear
// probing and deletion by shifting back (Knuth, The Art of Computer Programming, vol. 3, 6.4,
// algorithm R). Its keys are hashes already. The zero value is empty.
type reservations struct {
	slots []reservation // a power of two of them, at most half of them taken
	n     int
}

// An owner holds reservations: a transaction that is open or committing.
type owner struct {
	won atomic.Uint64 // the batch of the admitted transaction; 0 before
}

type reservation struct {
	name  lockName
	owner *owner // nil: the slot is free; that of the transaction, if a part holds it
	claim int32  // its index among those of its transaction, noClaim if only parts hold it
	parts int32  // open parts that hold it
}

const noClaim = -1

// A claimant makes reservations: a transaction, or a part of one.
type claimant struct {
	owner *owner           // that of the transaction
	mine  map[lockName]int // of a part: its claims, to their indices; nil for the transaction itself
}

func (c *claimant) isPart() bool { return c.mine != nil }

// shares reports whether only other parts of the same transaction hold the reservation.
func (c *claimant) shares(r reservation) bool {
	_, mine := c.mine[r.name]
	return r.owner == c.owner && r.claim == noClaim && !mine
}

// index returns the index of the reserved claim, if the claimant has made it.
func (c *claimant) index(r reservation) (i int, ok bool) {
	if c.isPart() {
		i, ok = c.mine[r.name]
		return i, ok
	}
	return int(r.claim), r.owner == c.owner
}

const (
	minReservations  = 1 << 8  // slots
	keptReservations = 1 << 17 // more slots than these are freed when none is used
)

// at returns the slot of a name, or the free one in which it would be. There must be a free one.
func (s *reservations) at(name lockName) int {
	i := s.home(name)
	for s.slots[i].owner != nil && s.slots[i].name != name {
		i = s.next(i)
	}
	return i
}

func (s *reservations) home(name lockName) int { return int(name.Lo) & (len(s.slots) - 1) }

func (s *reservations) next(i int) int { return (i + 1) & (len(s.slots) - 1) }

// prefetch loads the slot of a name into the processor's cache.
func (s *reservations) prefetch(name lockName) {
	if len(s.slots) > 0 {
		atomic.LoadInt32(&s.slots[s.home(name)].parts) // the compiler does not remove it
	}
}

// get returns the reservation; its owner is nil if there is none.
func (s *reservations) get(name lockName) reservation {
	if s.n == 0 {
		return reservation{}
	}
	return s.slots[s.at(name)]
}

// add makes the reservation unless one with its name exists, which it returns; the owner of that is
// nil if there was none.
func (s *reservations) add(r reservation) (other reservation) {
	if 2*(s.n+1) > len(s.slots) {
		s.grow()
	}
	i := s.at(r.name)
	if s.slots[i].owner != nil {
		return s.slots[i]
	}
	s.slots[i] = r
	s.n++
	return reservation{}
}

func (s *reservations) grow() {
	old := s.slots
	s.slots = make([]reservation, max(2*len(old), minReservations))
	for _, r := range old {
		if r.owner != nil {
			s.slots[s.at(r.name)] = r
		}
	}
}

// update calls fn with the reservation, and removes it if it is no longer held. It must exist.
func (s *reservations) update(name lockName, fn func(*reservation)) {
	i := s.at(name)
	if fn(&s.slots[i]); s.slots[i].claim == noClaim && s.slots[i].parts == 0 {
		s.remove(i)
	}
}

// remove removes the reservation in a slot.
func (s *reservations) remove(free int) {
	for i := s.next(free); s.slots[i].owner != nil; i = s.next(i) {
		// The entry after the free slot moves into it, unless its home is also after the free slot.
		if mask := len(s.slots) - 1; (i-s.home(s.slots[i].name))&mask >= (i-free)&mask {
			s.slots[free], free = s.slots[i], i
		}
	}
	s.slots[free] = reservation{}
	if s.n--; s.n == 0 && len(s.slots) > keptReservations {
		s.slots = nil
	}
}
