package pebble

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A scheduler lets Pebble compact as much as it allows itself, but only after the startup, which
// ends after Pebble's Open. Otherwise, Pebble would start all due number of running compactions
// during its Open and wait for them, and opening a store could take minutes.
//
// Pebble asks for permission with TrySchedule. If that returns false, Pebble waits for Schedule,
// which the scheduler's goroutine calls when a compaction ends, when a flush may have made others
// due, and at intervals. Pebble holds locks when it calls the scheduler, and takes them when the
// goroutine calls it.
type scheduler struct {
	db      pebble.DBForCompaction
	startup *startup
	wake    chan struct{} // capacity 1
	stop    func()        // ends the goroutine
	end     chan struct{}
	done    chan struct{} // closed when the goroutine has ended; nil if there is none

	mu      sync.Mutex // guards the fields below; not held during calls of db that take locks
	started bool
	running int       // compactions
	damaged time.Time // when a compaction last met damage
	rested  time.Time // when compactions may start again after that
}

var (
	_ pebble.CompactionScheduler   = (*scheduler)(nil)
	_ pebble.CompactionGrantHandle = (*scheduler)(nil)
)

// grantInterval is how often the goroutine checks for waiting compactions without being woken.
const grantInterval = 100 * time.Millisecond

func newScheduler(u *startup) *scheduler {
	end := make(chan struct{})
	return &scheduler{startup: u, wake: make(chan struct{}, 1), end: end, stop: sync.OnceFunc(func() { close(end) })}
}

// start starts granting compactions at the end of the startup. It is called once, after Pebble is
// open.
func (s *scheduler) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.done = true, make(chan struct{})
	go s.grants(s.done)
}

func (s *scheduler) grants(done chan struct{}) {
	defer close(done)
	select {
	case <-s.startup.over:
	case <-s.end:
		return
	}
	s.poke()
	ticks := time.NewTicker(grantInterval)
	defer ticks.Stop()
	for {
		select {
		case <-s.wake:
		case <-ticks.C:
		case <-s.end:
			return
		}
		for s.grantOne() {
		}
	}
}

// grantOne grants a waiting compaction, if there is one and another one may run. While one waits,
// Pebble does not ask for another, so counting it here takes no permission from others.
func (s *scheduler) grantOne() bool {
	if !s.allows() {
		return false
	}
	if waiting, _ := s.db.GetWaitingCompaction(); !waiting || !s.begin() {
		return false
	}
	if s.schedule() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	return false
}

// schedule runs the waiting compaction. Pebble (v2.1.7) panics if the compaction was requested by a
// call whose context ended while it waited. By then, Pebble has released its locks and forgotten
// the compaction, and it looks for another one on the next call.
func (s *scheduler) schedule() (scheduled bool) {
	defer func() {
		if r := recover(); r != nil {
			if !strings.Contains(fmt.Sprint(r), "did not find manual compaction") {
				panic(r)
			}
			s.poke()
		}
	}()
	return s.db.Schedule(s)
}

func (s *scheduler) allows() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayRun()
}

// begin counts another running compaction, if it may run.
func (s *scheduler) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	may := s.mayRun()
	if may {
		s.running++
	}
	return may
}

// damageRest is the pause after two compactions within this time have met damage. Pebble would
// endlessly repeat a compaction of L0 without a pause.
const damageRest = 10 * time.Second

// metDamage is called after a compaction that met damage. Pebble may hold locks.
func (s *scheduler) metDamage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.damaged) < damageRest {
		s.rested = now.Add(damageRest)
	}
	s.damaged = now
}

// mayRun reports whether one more compaction may run. The caller holds mu.
func (s *scheduler) mayRun() bool {
	return s.started && !time.Now().Before(s.rested) && s.startup.isOver() && s.running < s.db.GetAllowedWithoutPermission()
}

func (s *scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Register implements pebble.CompactionScheduler.
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) { s.db = db }

// Unregister implements pebble.CompactionScheduler. After it, no method of db is called.
func (s *scheduler) Unregister() {
	s.mu.Lock()
	s.started = false
	done := s.done
	s.mu.Unlock()
	s.stop()
	if done != nil {
		<-done
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	granted := s.begin()
	if !granted {
		s.poke() // in case a compaction has just ended
	}
	return granted, s
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (s *scheduler) UpdateGetAllowedWithoutPermission() { s.poke() }

// Done implements pebble.CompactionGrantHandle: a compaction has ended.
func (s *scheduler) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.poke()
}

// Started implements pebble.CompactionGrantHandle.
func (*scheduler) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (*scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (*scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
