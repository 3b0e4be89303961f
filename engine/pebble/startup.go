package pebble

import (
	"sync"
	"time"
)

// A startup is the time from Open until the first batch is durable, until space is to be freed, or,
// if neither happens, until startupTime has passed. Compactions and seals that are due begin at its
// end: they would take the processor and the disk from the engine that loads its filters, and from
// the first batch.
type startup struct {
	once sync.Once
	over chan struct{} // closed at the end
}

// startupTime is the default of the longest startup.
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
