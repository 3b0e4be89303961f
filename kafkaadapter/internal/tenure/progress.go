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

// watchedLog notes that the log answers, and how far it was read.
type watchedLog struct {
	replica.Log
	heard    func()
	progress *Progress // nil once the engine is open
}

func (l *watchedLog) Bounds(ctx context.Context) (start, end int64, err error) {
	start, end, err = l.Log.Bounds(ctx)
	if p := l.progress; p != nil && err == nil {
		p.from.Store(start)
		p.end.Store(end)
		l.heard()
	}
	return start, end, err
}

func (l *watchedLog) Append(ctx context.Context, record []byte) (replica.Ack, error) {
	ack, err := l.Log.Append(ctx, record)
	if l.progress != nil && err == nil {
		l.heard()
	}
	return ack, err
}

func (l *watchedLog) Read(ctx context.Context, from, to int64, fn func(offset int64, value []byte) bool) error {
	p := l.progress
	if p == nil {
		return l.Log.Read(ctx, from, to, fn)
	}
	return l.Log.Read(ctx, from, to, func(offset int64, value []byte) bool {
		p.at.Store(offset + 1)
		l.heard()
		return fn(offset, value)
	})
}

// watched returns a context that ends with ErrSilent as its cause when heard was not called for a while.
func watched(ctx context.Context, silence time.Duration) (_ context.Context, heard, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	last := time.Now()
	var since atomic.Int64 // of last
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(silence, func() {
		<-ready
		if left := silence - (time.Since(last) - time.Duration(since.Load())); left > 0 {
			timer.Reset(left)
			return
		}
		cancel(fmt.Errorf("%w: for %v", ErrSilent, silence))
	})
	close(ready)
	return ctx, func() { since.Store(int64(time.Since(last))) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// explained adds why a context has ended.
func explained(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrSilent) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
