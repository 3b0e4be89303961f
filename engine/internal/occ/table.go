package occ

import (
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// A Name identifies a reservation by a 128-bit hash of the claim's key, so that no key is copied.
// If two keys had the same hash (with probability 2^-128), an event would only get InFlight in
// vain, because a reservation means that no claim has committed yet.
type Name = xxh3.Uint128

// An Owner is an open or committing transaction that holds reservations.
type Owner struct {
	won atomic.Uint64 // batch of the admitted transaction, 0 before
}

// A Reservation is a claim that a transaction holds. Nobody holds the zero value.
type Reservation struct {
	name  Name
	owner *Owner // nil if not held; the owner of the transaction if a part holds it
	claim int32  // index among the claims of its transaction, noClaim if only parts hold it
	parts int32  // number of open parts that hold it
}

const noClaim = -1

// A table is an open-addressed hash table of reservations, with linear probing and deletion by
// shifting back (Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithm R). Names are
// already hashes. The zero value is empty.
type table struct {
	slots []Reservation // a power of two of slots, at most half of them used
	n     int
}

const (
	minSlots  = 1 << 8
	keptSlots = 1 << 17 // a larger table is freed when it is empty
)

// at returns the slot of a name, or the free slot for it. There must be a free slot.
func (s *table) at(name Name) int {
	i := s.home(name)
	for s.slots[i].owner != nil && s.slots[i].name != name {
		i = s.next(i)
	}
	return i
}

func (s *table) home(name Name) int { return int(name.Lo) & (len(s.slots) - 1) }

func (s *table) next(i int) int { return (i + 1) & (len(s.slots) - 1) }

// prefetch loads the slot of a name into the processor's cache.
func (s *table) prefetch(name Name) {
	if len(s.slots) > 0 {
		atomic.LoadInt32(&s.slots[s.home(name)].parts) // atomic, so that the compiler keeps the load
	}
}

// get returns the reservation with the name, or the zero value.
func (s *table) get(name Name) Reservation {
	if s.n == 0 {
		return Reservation{}
	}
	return s.slots[s.at(name)]
}

// add adds the reservation, unless there is one with its name: then add returns that one, otherwise
// the zero value.
func (s *table) add(r Reservation) (other Reservation) {
	if 2*(s.n+1) > len(s.slots) {
		s.grow()
	}
	i := s.at(r.name)
	if s.slots[i].owner != nil {
		return s.slots[i]
	}
	s.slots[i] = r
	s.n++
	return Reservation{}
}

func (s *table) grow() {
	old := s.slots
	s.slots = make([]Reservation, max(2*len(old), minSlots))
	for _, r := range old {
		if r.owner != nil {
			s.slots[s.at(r.name)] = r
		}
	}
}

// update calls fn with an existing reservation, and removes the reservation if it is no longer
// held.
func (s *table) update(name Name, fn func(*Reservation)) {
	i := s.at(name)
	if fn(&s.slots[i]); s.slots[i].claim == noClaim && s.slots[i].parts == 0 {
		s.remove(i)
	}
}

// remove removes the reservation in a slot.
func (s *table) remove(free int) {
	for i := s.next(free); s.slots[i].owner != nil; i = s.next(i) {
		// Move the entry into the free slot, unless its home is after that slot.
		if mask := len(s.slots) - 1; (i-s.home(s.slots[i].name))&mask >= (i-free)&mask {
			s.slots[free], free = s.slots[i], i
		}
	}
	s.slots[free] = Reservation{}
	if s.n--; s.n == 0 && len(s.slots) > keptSlots {
		s.slots = nil
	}
}
