package filters

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/bloom"
	"github.com/hapax-dev/hapax/weekbucket"
)

// A rebuild makes the filters complete and then trusted. A view that was trusted without them would
// find every claim of the week new.
func TestATrustedViewIsComplete(t *testing.T) {
	const week, rounds = 7, 50_000
	const hash = 1
	full := bloom.New(bloom.Options{})
	full.Add(hash)
	complete := map[weekbucket.Week]*bloom.Filter{week: full}
	var rebuilding, ended atomic.Int64
	s := New(1<<20, 1000)
	go func() {
		for round := int64(1); round <= rounds; round++ {
			for rebuilding.Load() < round {
				runtime.Gosched()
			}
			s.weeks.filters.Store(&complete)
			s.trusted.Store(true)
			ended.Store(round)
		}
	}()
	wrong := 0
	for round := int64(1); round <= rounds; round++ {
		s.weeks.filters.Store(&map[weekbucket.Week]*bloom.Filter{})
		s.trusted.Store(false)
		rebuilding.Store(round)
		for ended.Load() < round {
			if v := s.View(); v.CertainlyNew(week, hash) {
				wrong++
			}
			if runtime.GOMAXPROCS(0) == 1 { // the other goroutine would wait until this one is preempted
				runtime.Gosched()
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%d views were trusted without the filters", wrong)
	}
}
