package engine

import (
	"fmt"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/internal/keyspace"
)

// An ownership is a driver.Ownership.
type ownership struct {
	owner   keyspace.Space
	group   string
	holds   func() (names []string, complete bool)
	instead string
}

// ownerships are the current ownerships.
type ownerships struct {
	mu  sync.RWMutex // guards all
	all []*ownership
}

// own adds an ownership, which lasts until release is called.
func (s *ownerships) own(o ownership) (release func()) {
	mustOwn(o.owner)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, &o)
	return func() { s.disown(&o) }
}

func (s *ownerships) disown(o *ownership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *ownership) bool { return other == o })
}

// otherOwner returns a matching ownership of an owner other than by, nil if there is none.
func (s *ownerships) otherOwner(by keyspace.Space, owns func(*ownership) bool) *ownership {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range s.all {
		if o.owner != by && owns(o) {
			return o
		}
	}
	return nil
}

// checkOwnOffset returns an error if an owner other than by owns an offset.
func (s *ownerships) checkOwnOffset(by keyspace.Space, p OffsetKey) error {
	o := s.otherOwner(by, func(o *ownership) bool { return o.group == p.Group })
	if o == nil {
		return nil
	}
	return belongs("offset", fmt.Sprintf("of group %q in %s/%d", p.Group, p.Topic, p.Partition), o.owner, o.instead)
}

// checkOwnHold returns an error if an owner other than by owns a hold.
func (s *ownerships) checkOwnHold(by keyspace.Space, name string) error {
	o := s.otherOwner(by, func(o *ownership) bool {
		if o.holds == nil {
			return false
		}
		names, _ := o.holds()
		return slices.Contains(names, name)
	})
	if o == nil {
		return nil
	}
	return belongs("hold name", fmt.Sprintf("%q", name), o.owner, o.instead)
}

// placed returns the number of owners, and reports whether all of their holds are there.
func (s *ownerships) placed(there *holds) (owners int, all bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range s.all {
		if o.holds == nil {
			continue
		}
		if names, complete := o.holds(); !complete || len(there.among(names)) < len(names) {
			return len(s.all), false
		}
	}
	return len(s.all), true
}

// An owned says which savepoints of a transaction belong to its owner.
type owned struct {
	by   keyspace.Space
	last uint64 // the serial number of the last one
}

func mustOwn(space keyspace.Space) {
	if space == (keyspace.Space{}) {
		panic("hapax: the zero keyspace.Space owns nothing: make one with keyspace.New")
	}
}

// belongs returns the error for something that another owner owns.
func belongs(argument, what string, owner keyspace.Space, instead string) error {
	return &ArgumentError{argument, fmt.Sprintf("%s belongs to %s: %s", what, owner.Owner(), instead)}
}
