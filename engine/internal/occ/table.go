package occ

import (
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// A Name is the name of a reservation: a hash of 128 bits of the claim's key, so that no key is
// copied. Two keys with the same hash, which have a probability of 2^-128, would only keep each
// other in flight: a reservation says that no claim has committed yet.
type Name = xxh3.Uint128

// An Owner holds reservations: a transaction that is open or committing.
type Owner struct {
	won atomic.Uint64 // the batch of the admitted transaction; 0 before
}

// A Reservation is a claim that a transaction holds. The zero value is held by none.
type Reservation struct {
	name  Name
	owner *Owner // nil: none; that of the transaction, if a part holds it
	claim int32  // its index among those of its transaction, noClaim if only parts hold it
	parts int32  // open parts that hold it
}

const noClaim = -1

// A table holds reservations by their names: an open-addressed hash table with linear probing and
// deletion by shifting back (Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithm R). Its
// keys are hashes already. The zero value is empty.
type table struct {
	slots []Reservation // a power of two of them, at most half of them taken
	n     int
}

const (
	minSlots  = 1 << 8
	keptSlots = 1 << 17 // more slots than these are freed when none is used
)

// at returns the slot of a name, or the free one in which it would be. There must be a free one.
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
		atomic.LoadInt32(&s.slots[s.home(name)].parts) // the compiler does not remove it
	}
}

// get returns the reservation; its owner is nil if there is none.
func (s *table) get(name Name) Reservation {
	if s.n == 0 {
		return Reservation{}
	}
	return s.slots[s.at(name)]
}

// add makes the reservation unless one with its name exists, which it returns; the owner of that is
// nil if there was none.
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

// update calls fn with the reservation, and removes it if it is no longer held. It must exist.
func (s *table) update(name Name, fn func(*Reservation)) {
	i := s.at(name)
	if fn(&s.slots[i]); s.slots[i].claim == noClaim && s.slots[i].parts == 0 {
		s.remove(i)
	}
}

// remove removes the reservation in a slot.
func (s *table) remove(free int) {
	for i := s.next(free); s.slots[i].owner != nil; i = s.next(i) {
		// The entry after the free slot moves into it, unless its home is also after the free slot.
		if mask := len(s.slots) - 1; (i-s.home(s.slots[i].name))&mask >= (i-free)&mask {
			s.slots[free], free = s.slots[i], i
		}
	}
	s.slots[free] = Reservation{}
	if s.n--; s.n == 0 && len(s.slots) > keptSlots {
		s.slots = nil
	}
}
