package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/storage"
)

func reopenFindsEverything(e *env) {
	b := bucket("a", week)
	for round := range 4 {
		for i := range 10 {
			n := 100*round + 10*i
			e.apply(storage.Batch{
				Claims:  append(numbered(b, n, n+10), unclaim(b, fmt.Sprintf("id-%06d", n/2))),
				State:   []storage.StateWrite{set("last", fmt.Sprint(n)), set(fmt.Sprint(n), "x"), unset(fmt.Sprint(n - 20))},
				Journal: fmt.Append(nil, "entry of ", n),
			})
		}
		e.reopen()
		if got, want := e.s.LastSeq(), uint64(10*(round+1)); got != want {
			e.Fatalf("LastSeq is %d, want %d", got, want)
		}
		e.expectClaim(b, fmt.Sprintf("id-%06d", 100*round+99), fmt.Sprintf("%v %d", b, 100*round+99))
		e.expectState("last", fmt.Sprint(100*round+90))
		e.check(fmt.Sprintf("reopened %d times", round+1))
	}
	e.reopen()
	e.reopen()
	e.check("reopened with nothing new")
}

func identitySurvivesReopen(e *env) {
	id := e.s.Identity()
	e.claims(claim(bucket("a", week), "x", "1"))
	if got := e.s.Identity(); got != id {
		e.Errorf("Identity was %v and is %v", id, got)
	}
	e.reopen()
	e.reopen()
	if got := e.s.Identity(); got != id {
		e.Errorf("Identity was %v and is %v after a reopen", id, got)
	}
	e.needCrash()
	e.crash(0)
	if got := e.s.Identity(); got != id {
		e.Errorf("Identity was %v and is %v after a crash", id, got)
	}
}

func lastSeqIsWhatOpenFound(e *env) {
	if got := e.s.LastSeq(); got != 0 {
		e.Errorf("LastSeq of a new store is %d", got)
	}
	for range 3 {
		e.state(set("x", "y"))
	}
	if got := e.s.LastSeq(); got != 0 {
		e.Errorf("LastSeq has moved to %d while the store was open; it must stay as Open has found it", got)
	}
	e.reopen()
	if got := e.s.LastSeq(); got != 3 {
		e.Errorf("LastSeq is %d after 3 batches and a reopen", got)
	}
}

// waitInOrder waits in a different goroutine than Apply, while further batches are applied.
func waitInOrder(e *env) {
	const batches = 100
	waits := make(chan func() error, batches)
	waited := make(chan error, 1)
	go func() {
		for wait := range waits {
			if err := wait(); err != nil {
				waited <- err
				return
			}
		}
		waited <- nil
	}()
	for i := range batches {
		e.apply(storage.Batch{Claims: numbered(bucket("a", week), i, i+5), Journal: []byte("x")})
		waits <- e.waits[0]
		e.waits = nil
	}
	close(waits)
	e.within(e.h.patience, "waiting for all batches", func() error { return <-waited })
	e.told.confirm(batches)
	e.check("all waited for")
	e.needCrash()
	e.crash(0)
	e.check("after a crash")
}

func waitedForSurvives(e *env) {
	e.needCrash()
	b := bucket("a", week)
	for round := range 3 {
		for i := range 8 {
			n := 100*round + 10*i
			e.put(storage.Batch{
				Claims:  append(numbered(b, n, n+10), unclaim(b, fmt.Sprintf("id-%06d", n/2))),
				State:   []storage.StateWrite{set("last", fmt.Sprint(n)), unset(fmt.Sprint(n - 20)), set(fmt.Sprint(n), "")},
				Journal: fmt.Append(nil, n),
			})
			if round == 1 && i == 4 {
				e.settle()
			}
		}
		e.crash(0)
		e.expectState("last", fmt.Sprint(100*round+70))
		e.check(fmt.Sprintf("after crash %d", round+1))
	}
}

func emptyBatchIsDurable(e *env) {
	e.needCrash()
	e.put(storage.Batch{})
	e.crash(0)
	e.check("an empty batch as the first one")
	e.claims(claim(bucket("a", week), "x", "1"))
	e.put(storage.Batch{})
	e.put(storage.Batch{Journal: []byte{}})
	e.crash(0)
	if got := e.s.LastSeq(); got != 4 {
		e.Errorf("LastSeq is %d after 4 batches, the last two of them empty, and a crash", got)
	}
	e.check("empty batches after another one")
}

func crashKeepsAPrefix(e *env) {
	e.needCrash()
	b := bucket("a", week)
	for round, unsynced := range []int{100, 0, 50, 25, 75} {
		for i := range 12 {
			n := 1000*round + 10*i
			e.apply(storage.Batch{
				Claims:  append(numbered(b, n, n+10), unclaim(b, fmt.Sprintf("id-%06d", n-5)), claim(b, "newest", fmt.Sprint(n))),
				State:   []storage.StateWrite{set("newest", fmt.Sprint(n)), set(fmt.Sprint(n), "x")},
				Journal: fmt.Append(nil, n),
			})
			if i == 5 {
				e.wait(4)
			}
		}
		e.crash(unsynced)
		e.check(fmt.Sprintf("after a crash that keeps %d %% of the unsynced data", unsynced))
	}
}

// whatOpenFoundIsDurable checks that the state that Open finds after a crash survives the next
// crash.
func whatOpenFoundIsDurable(e *env) {
	e.needCrash()
	b := bucket("a", week)
	for _, unsynced := range []int{100, 50} {
		for i := range 10 {
			e.apply(storage.Batch{Claims: numbered(b, 10*i, 10*i+10), State: []storage.StateWrite{set("newest", fmt.Sprint(i))}})
		}
		e.crash(unsynced)
		found := e.s.LastSeq()
		e.crash(0)
		if got := e.s.LastSeq(); got != found {
			e.Fatalf("Open found batch %d, and after another crash batch %d", found, got)
		}
		e.check("after two crashes")
	}
}

func lostNumbersAreUsedAgain(e *env) {
	e.needCrash()
	b := bucket("a", week)
	for round := range 4 {
		e.put(storage.Batch{Claims: []storage.ClaimWrite{claim(b, fmt.Sprint("kept", round), "x")}, Journal: []byte("kept")})
		for i := range 5 {
			e.apply(storage.Batch{
				Claims:  []storage.ClaimWrite{claim(b, fmt.Sprint(round, i), fmt.Sprint("of round ", round))},
				State:   []storage.StateWrite{set(fmt.Sprint(round, i), "x")},
				Journal: fmt.Append(nil, "of round ", round),
			})
		}
		e.crash(0)
		e.check("after the crash")
		e.put(storage.Batch{Claims: []storage.ClaimWrite{claim(b, "next", fmt.Sprint(round))}, Journal: fmt.Append(nil, "next ", round)})
		e.reopen()
		e.check("with new batches under the numbers of lost ones")
	}
}

// crashAtAnyMoment makes crash clones while batches are applied and waited for.
func crashAtAnyMoment(e *env) {
	e.needAtomicClone()
	const batches = 80
	type cut struct {
		dir                string
		confirmed, applied uint64
	}
	var cuts []cut
	var begun, confirmed atomic.Uint64
	waits := make(chan func() error, batches)
	waited := make(chan error, 1)
	go func() {
		var err error
		for wait := range waits {
			if err == nil {
				if err = wait(); err == nil {
					confirmed.Add(1)
				}
			}
		}
		waited <- err
	}()
	// The cloner continues for as long as batches are applied; every tenth batch waits until the
	// cloner has seen a moment in which all is confirmed.
	var cloned atomic.Uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	s, dir := e.s, e.dir
	go func() {
		defer close(stopped)
		for i := 0; len(cuts) < 20; i++ {
			c := cut{confirmed: confirmed.Load()}
			c.dir = e.h.CrashClone(e.test, s, dir, 50*(i%3))
			c.applied = begun.Load()
			cuts = append(cuts, c)
			cloned.Add(1)
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	}()
	moments := map[uint64]*contents{0: e.told.view.clone()}
	for i := range batches {
		begun.Add(1)
		e.apply(storage.Batch{
			Claims:  append(numbered(bucket("a", week), 4*i, 4*i+4), unclaim(bucket("a", week), fmt.Sprintf("id-%06d", 4*i-3))),
			State:   []storage.StateWrite{set("newest", fmt.Sprint(i))},
			Journal: fmt.Append(nil, i),
		})
		waits <- e.waits[0]
		e.waits = nil
		moments[e.told.view.lastSeq] = e.told.view.clone()
		if i%10 == 4 {
			e.within(e.h.patience, "waiting for a batch and a clone", func() error {
				for confirmed.Load() <= uint64(i) && len(waited) == 0 {
					time.Sleep(50 * time.Microsecond)
				}
				for enough := cloned.Load() + 2; cloned.Load() < min(enough, 20); {
					time.Sleep(50 * time.Microsecond)
				}
				return nil
			})
		}
	}
	close(waits)
	e.within(e.h.patience, "waiting for all batches", func() error { return <-waited })
	close(stop)
	<-stopped
	e.told.confirm(batches)
	for _, c := range cuts {
		e.onOther(c.dir, func(s storage.Store) {
			n := s.LastSeq()
			if n < c.confirmed || n > c.applied {
				e.Errorf("the crash came after %d waits had returned and %d batches had begun; batch %d is found", c.confirmed, c.applied, n)
			} else if diff := e.compare(s, moments[n]); diff != "" {
				e.Errorf("after a crash that kept batch %d: %s", n, diff)
			}
		})
	}
	e.check("after all")
}
