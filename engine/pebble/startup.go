package pebble

import (
	"sync"
	"time"
)

// A startup is the time from Open until the first batch is durable, space must be freed, or
// startupTime has passed. Due compactions and seals start only at its end, because they would
// compete for processor and disk with the first batch and with the engine, which loads its filters.
type startup struct {
	once sync.Once
	over chan struct{} // closed at the end
}

// startupTime is the default maximum of a startup.
const startupTime = time.Second

func newStartup() *startup { return &startup{over: make(chan struct{})} }

func (s *startup) end() { s.once.Do(func() { close(s.over) }) }

func (s *startup) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// await ends the startup when the limit has passed or stop is closed.
func (s *startup) await(limit time.Duration, stop <-chan struct{}) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-s.over:
	case <-timer.C:
	case <-stop:
	}
	s.end()
}
