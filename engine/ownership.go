package engine

import (
	"fmt"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/internal/keyspace"
)

// A Space is a key space that a package of this module owns, such as outbox. An application has none:
// its keys are those of Engine.Get and Tx.Put. Keys of a space and of others cannot collide.
type Space = keyspace.Space

// An Ownership is what a package of this module uses in an engine and changes alone, such as the
// offsets of the consumer group of a running consumer. Applications own nothing; their calls are
// rejected with an ArgumentError that names the owner. Everybody may read.
type Ownership struct {
	Owner Space
	// Group is the consumer group whose offsets are owned.
	Group string
	// OwnsHold reports whether a hold is owned. It is called at any time, and must not call the engine.
	OwnsHold func(name string) bool
	// Instead says what an application does instead of such a call.
	Instead string
}

// ownerships are those that have begun and not ended.
type ownerships struct {
	mu  sync.RWMutex // guards all
	all []*Ownership
}

// Own implements Engine.Own.
func (s *ownerships) Own(o Ownership) (release func()) {
	mustOwn(o.Owner)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, &o)
	return func() { s.disown(&o) }
}

func (s *ownerships) disown(o *Ownership) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *Ownership) bool { return other == o })
}

// otherOwner returns an ownership of another one than by, nil if there is none.
func (s *ownerships) otherOwner(by Space, owns func(*Ownership) bool) *Ownership {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range s.all {
		if o.Owner != by && owns(o) {
			return o
		}
	}
	return nil
}

// checkOwnOffset returns an error if another one than by owns an offset.
func (s *ownerships) checkOwnOffset(by Space, p OffsetKey) error {
	o := s.otherOwner(by, func(o *Ownership) bool { return o.Group == p.Group })
	if o == nil {
		return nil
	}
	return belongs("offset", fmt.Sprintf("of group %q in %s/%d", p.Group, p.Topic, p.Partition), o.Owner, o.Instead)
}

// checkOwnHold returns an error if another one than by owns a hold.
func (s *ownerships) checkOwnHold(by Space, name string) error {
	o := s.otherOwner(by, func(o *Ownership) bool { return o.OwnsHold != nil && o.OwnsHold(name) })
	if o == nil {
		return nil
	}
	return belongs("hold name", fmt.Sprintf("%q", name), o.Owner, o.Instead)
}

// An owned says what of a transaction is its owner's.
type owned struct {
	by   Space
	last uint64 // the serial number of the last savepoint that is
}

func mustOwn(space Space) {
	if space == (Space{}) {
		panic("hapax: the zero keyspace.Space owns nothing: make one with keyspace.New")
	}
}

// belongs is the error of a call for what another one owns.
func belongs(argument, what string, owner Space, instead string) error {
	return &ArgumentError{argument, fmt.Sprintf("%s belongs to %s: %s", what, owner.Owner(), instead)}
}
