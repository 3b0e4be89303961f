package pebble

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A scheduler lets Pebble compact as much as it allows itself, but not before the end of the
// startup, which comes after Pebble's Open. At the end of its Open, Pebble waits for all
// compactions, and it begins those that are due before that: a store would be opened after seconds
// or minutes of rewriting.
//
// Pebble asks by TrySchedule. If the answer is no, it waits for Schedule, which the goroutine of
// the scheduler calls when a compaction ends, when a flush may have made others due, and now and
// then. Pebble holds locks in its calls, and takes them in those of the goroutine.
type scheduler struct {
	db      pebble.DBForCompaction
	startup *startup
	wake    chan struct{} // takes one
	stop    func()        // ends the goroutine
	end     chan struct{}
	done    chan struct{} // closed when the goroutine has ended; nil if there is none

	mu      sync.Mutex // guards the fields below; not held in calls of db that take locks
	started bool
	running int       // compactions
	damaged time.Time // when a compaction last met damage
	rested  time.Time // when compactions may begin again after that
}

var (
	_ pebble.CompactionScheduler   = (*scheduler)(nil)
	_ pebble.CompactionGrantHandle = (*scheduler)(nil)
)

// grantInterval is how often the goroutine looks for waiting compactions that it was not woken for.
const grantInterval = 100 * time.Millisecond

func newScheduler(u *startup) *scheduler {
	end := make(chan struct{})
	return &scheduler{startup: u, wake: make(chan struct{}, 1), end: end, stop: sync.OnceFunc(func() { close(end) })}
}

// start begins to grant compactions at the end of the startup. It is called once, after Pebble is
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

// grantOne grants one waiting compaction, if there is one and one more may run. While one waits,
// Pebble does not ask for another, so that what is counted here is refused to none.
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

// schedule runs the waiting compaction. Pebble (v2.1.7) panics if that was requested by a call
// whose context ended while it waited. It has then unlocked what it locked and forgotten that
// compaction, and looks for another one when it is asked again.
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

// begin counts one more running compaction, if that is allowed.
func (s *scheduler) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	may := s.mayRun()
	if may {
		s.running++
	}
	return may
}

// damageRest is the pause after two compactions in this time have met damage. Pebble would repeat one
// of L0 at once, forever.
const damageRest = 10 * time.Second

// metDamage is called after a compaction. Pebble may hold locks in its call.
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

// Unregister implements pebble.CompactionScheduler. No method of db is called after it.
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
		s.poke() // for the case that one has just ended
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
