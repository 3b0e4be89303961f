package engine

import (
	"context"
	"sync"
	"sync/atomic"
)

// A watermark is an increasing number for which callers can wait.
type watermark struct {
	at     atomic.Uint64
	mu     sync.Mutex // guards failed and cond; held only briefly
	cond   sync.Cond
	failed bool
}

func (w *watermark) init(at uint64) {
	w.cond.L = &w.mu
	w.at.Store(at)
}

func (w *watermark) raise(to uint64) {
	w.mu.Lock()
	w.at.Store(to)
	w.mu.Unlock()
	w.cond.Broadcast()
}

func (w *watermark) fail() {
	w.mu.Lock()
	w.failed = true
	w.mu.Unlock()
	w.cond.Broadcast()
}

// wait waits until the mark is at least n. It returns false if fail was called before.
func (w *watermark) wait(n uint64) bool { return w.waitContext(context.Background(), n) }

// waitContext is wait, but also returns false when ctx is done.
func (w *watermark) waitContext(ctx context.Context, n uint64) bool {
	if w.at.Load() >= n {
		return true
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() {
			w.mu.Lock() // so that no waiter is between its check of ctx and cond.Wait
			defer w.mu.Unlock()
			w.cond.Broadcast()
		})()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.at.Load() < n {
		if w.failed || ctx.Err() != nil {
			return false
		}
		w.cond.Wait()
	}
	return true
}
