package kafkaadapter

import (
	"errors"
	"sync"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// ErrUnprotected says that the store has failed, and that records are handled without claims until
// it is open again (Options.FailOpen). Ready wraps it, with the failure.
var ErrUnprotected = errors.New("hapax: the store has failed, and records are handled without claims until Options.FailOpen has opened it")

// A link is an engine with what the consumer has read from its store. It does not change.
type link struct {
	eng    *engine.Engine
	id     storage.Identity
	self   string // metadata of commits
	secret []byte // seals dead letters; it never leaves the store
}

func newLink(eng *engine.Engine, secret []byte) *link {
	id := eng.Identity()
	return &link{eng, id, authorOf(id).metadata(), secret}
}

// links hold the link to the store. It is replaced when the store has failed and is open again.
type links struct {
	failed chan struct{} // wakes reopenLoop

	mu      sync.Mutex // guards the rest
	current *link      // the last one there was; nil before the first
	away    error      // why there is none that works; nil if there is
}

func (s *links) get() (last *link, away error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.away
}

func (s *links) set(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.away = l, nil
}

// lose notes why the link does not work, and reports whether that is news.
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
