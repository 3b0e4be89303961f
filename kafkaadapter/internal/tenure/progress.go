package tenure

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine/replica"
)

// A Progress says how much of a changelog was read. It is safe for concurrent use.
type Progress struct{ from, at, end atomic.Int64 }

// Ratio is the part of the log that was read, from 0 to 1.
func (p *Progress) Ratio() float64 {
	from, at, end := p.from.Load(), p.at.Load(), p.end.Load()
	if end <= from {
		return 0
	}
	return min(1, max(0, float64(at-from)/float64(end-from)))
}

// Reset begins at 0.
func (p *Progress) Reset() {
	p.from.Store(0)
	p.at.Store(0)
	p.end.Store(0)
}

// watchedLog notes while an engine is opened that the log answers, and how far it was read.
type watchedLog struct {
	replica.Log
	watch    *watch
	progress atomic.Pointer[Progress] // nil once the engine is open
}

func (l *watchedLog) Topic(ctx context.Context) ([16]byte, error) {
	l.watch.asked()
	defer l.watch.answered()
	return l.Log.Topic(ctx)
}

func (l *watchedLog) Bounds(ctx context.Context) (start, end int64, err error) {
	l.watch.asked()
	defer l.watch.answered()
	start, end, err = l.Log.Bounds(ctx)
	if p := l.progress.Load(); p != nil && err == nil {
		p.from.Store(start)
		p.end.Store(end)
	}
	return start, end, err
}

func (l *watchedLog) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	l.watch.asked()
	defer l.watch.answered()
	return l.Log.Append(ctx, record)
}

func (l *watchedLog) Read(ctx context.Context, from, to int64, fn func(offset int64, value []byte) bool) error {
	p := l.progress.Load()
	if p == nil {
		return l.Log.Read(ctx, from, to, fn)
	}
	l.watch.asked()
	defer l.watch.answered()
	return l.Log.Read(ctx, from, to, func(offset int64, value []byte) bool {
		p.at.Store(offset + 1)
		l.watch.answered()
		defer l.watch.asked()
		return fn(offset, value)
	})
}

// A watch notices that a log does not answer. The time that the copy and the engine take does not count.
type watch struct {
	began   time.Time
	since   atomic.Int64 // when the log was asked last, after began
	waiting atomic.Int64 // calls
}

// watched returns a context that ends with ErrSilent as its cause when a call gets no answer for a while.
func watched(ctx context.Context, silence time.Duration) (_ context.Context, w *watch, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w = &watch{began: time.Now()}
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(silence, func() {
		<-ready
		left := silence
		if w.waiting.Load() > 0 {
			left -= time.Since(w.began) - time.Duration(w.since.Load())
		}
		if left > 0 {
			timer.Reset(left)
			return
		}
		cancel(fmt.Errorf("%w: for %v", ErrSilent, silence))
	})
	close(ready)
	return ctx, w, func() {
		timer.Stop()
		cancel(nil)
	}
}

func (w *watch) asked() {
	w.since.Store(int64(time.Since(w.began)))
	w.waiting.Add(1)
}

func (w *watch) answered() { w.waiting.Add(-1) }

// explained adds why a context has ended.
func explained(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrSilent) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
