package telemetry

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// An Engine has the methods that a scrape calls: *engine.Engine.
type Engine interface {
	Stats() (engine.Stats, error)
	Weeks(ctx context.Context) ([]engine.WeekInfo, error)
}

// patience is how long a scrape waits for an answer of the engine. All other metrics of the process
// wait too.
const patience = 2 * time.Second

// weeksShare bounds the time spent on figures by week. They are read again after weeksShare times
// the duration of the last reading, or after Detail.WeeksEvery if that is longer.
const weeksShare = 20

// A watcher has the engine that scrapes read. It is a part of the Observer.
type watcher struct {
	every time.Duration         // Detail.WeeksEvery
	watch atomic.Pointer[watch] // nil while no engine is watched
}

func (r *watcher) Watch(e Engine) (stop func()) {
	w := newWatch(e, r.every)
	if old := r.watch.Swap(w); old != nil {
		old.end()
	}
	return func() { r.unwatch(w) }
}

func (r *watcher) unwatch(w *watch) {
	r.watch.CompareAndSwap(w, nil)
	w.end()
}

// end ends watching, if an engine is watched.
func (r *watcher) end() {
	if w := r.watch.Swap(nil); w != nil {
		w.end()
	}
}

// A watch reads the figures of one engine. Its calls run in separate goroutines, at most one for
// each kind of call, so that a store that hangs does not block the scrape. end waits for them.
type watch struct {
	cancel context.CancelFunc
	stats  question[engine.Stats]
	weeks  question[struct{}] // its result goes to cache
	cache  atomic.Pointer[weeks]
	every  time.Duration
}

// The last figures by week.
type weeks struct {
	infos []engine.WeekInfo
	err   error
	next  time.Time // when to read them again
}

func newWatch(e Engine, every time.Duration) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel: cancel, every: every}
	w.stats.ask = e.Stats
	w.weeks.ask = func() (struct{}, error) {
		begun := time.Now()
		infos, err := e.Weeks(ctx)
		now := time.Now()
		w.cache.Store(&weeks{infos, err, now.Add(max(w.every, weeksShare*now.Sub(begun)))})
		return struct{}{}, err
	}
	return w
}

func (w *watch) end() {
	w.cancel()
	w.stats.end()
	w.weeks.end()
}

// latestWeeks returns the figures by week, and reads them again if they are due. If the result does
// not arrive in time, it returns the previous one.
func (w *watch) latestWeeks() ([]engine.WeekInfo, error) {
	c := w.cache.Load()
	if c == nil || !time.Now().Before(c.next) {
		if _, err := w.weeks.answer(); err != nil && !errors.Is(err, errSlow) {
			return nil, err
		}
		c = w.cache.Load()
	}
	if c == nil {
		return nil, errSlow
	}
	return c.infos, c.err
}

var (
	errSlow  = errors.New("hapax: telemetry: no answer from the engine in time")
	errEnded = errors.New("hapax: telemetry: the engine is no longer watched")
)

// A question makes one call at a time. A goroutine that asks meanwhile gets the result of that
// call.
type question[T any] struct {
	ask func() (T, error)

	mu      sync.Mutex // guards the following; not held while waiting
	ended   bool
	pending *asked[T] // nil if no call is in progress
}

type asked[T any] struct {
	done  chan struct{} // closed when the result is there
	value T
	err   error
}

// answer waits at most patience for a result.
func (q *question[T]) answer() (T, error) {
	a := q.pose()
	var none T
	if a == nil {
		return none, errEnded
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-a.done:
		return a.value, a.err
	case <-timer.C:
		return none, errSlow
	}
}

func (q *question[T]) pose() *asked[T] {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return nil
	}
	if q.pending == nil {
		a := &asked[T]{done: make(chan struct{})}
		q.pending = a
		go func() {
			a.value, a.err = q.ask()
			q.mu.Lock()
			q.pending = nil
			q.mu.Unlock()
			close(a.done)
		}()
	}
	return q.pending
}

func (q *question[T]) end() {
	q.mu.Lock()
	q.ended = true
	a := q.pending
	q.mu.Unlock()
	if a != nil {
		<-a.done
	}
}
