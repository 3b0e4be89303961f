package kafkaadapter

import (
	"sync"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/internal/resume"
)

// A link is an engine together with data that the consumer has read from its store. It is
// immutable.
type link struct {
	eng     *engine.Engine
	id      storage.Identity
	self    string             // metadata of commits
	secrets deadletter.Secrets // they never leave the store
}

func authorOf(id storage.Identity) resume.Author {
	return resume.Author{UUID: id.UUID, Incarnation: id.Incarnation}
}

func newLink(eng *engine.Engine, secrets deadletter.Secrets) *link {
	id := eng.Identity()
	return &link{eng, id, authorOf(id).Metadata(), secrets}
}

// links holds the link to a store. It is replaced when the store has failed and was opened again.
type links struct {
	failed chan struct{} // wakes reopenLoop

	mu      sync.Mutex // guards the rest
	current *link      // the last link; nil before the first
	away    error      // why the link does not work; nil if it does
}

func (s *links) get() (last *link, away error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.away
}

// areAway reports whether the store has failed and is not open again.
func (s *links) areAway() bool {
	_, away := s.get()
	return away != nil
}

func (s *links) set(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.away = l, nil
}

// lose records why the link does not work, and reports whether that is new.
func (s *links) lose(l *link, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != l || s.away != nil {
		return false
	}
	s.away = err
	select {
	case s.failed <- struct{}{}:
	default:
	}
	return true
}
