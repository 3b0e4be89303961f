package engine

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
	place := place{week: week, hash: 1}
	full := bloom.New(bloom.Options{})
	full.Add(place.hash)
	complete := map[weekbucket.Week]*bloom.Filter{week: full}
	var rebuilding, ended atomic.Int64
	s := newScreen(Options{})
	go func() {
		for round := int64(1); round <= rounds; round++ {
			for rebuilding.Load() < round {
				runtime.Gosched()
			}
			s.filters.Store(&complete)
			s.trusted.Store(true)
			ended.Store(round)
		}
	}()
	wrong := 0
	for round := int64(1); round <= rounds; round++ {
		s.filters.Store(&map[weekbucket.Week]*bloom.Filter{})
		s.trusted.Store(false)
		rebuilding.Store(round)
		for ended.Load() < round {
			if v := s.view(); v.certainlyNew(&place) {
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

// Filters that are being rebuilt do not say which events were claimed.
func TestProbablyClaimedWhileTheFiltersAreRebuilt(t *testing.T) {
	const week = 7
	s := newScreen(Options{})
	full := bloom.New(bloom.Options{})
	s.filters.Store(&map[weekbucket.Week]*bloom.Filter{week: full})
	r := &ahead{expected: make([]expected, askAhead+2)}
	for i := range r.expected {
		x := &r.expected[i]
		x.candidate.place, x.ok = place{week: week, hash: uint64(i+1) * 0x9E3779B97F4A7C15}, i%3 != 0
		if i%2 == 0 {
			full.Add(x.candidate.place.hash)
		}
	}
	for _, trusted := range []bool{false, true} {
		s.trusted.Store(trusted)
		for i, got := range r.probablyClaimed(s) {
			if want := trusted && i%2 == 0 && i%3 != 0; got != want {
				t.Errorf("trusted=%t: event %d: %t, want %t", trusted, i, got, want)
			}
		}
	}
}
