package engine

import (
	"context"
	"sync"
	"sync/atomic"
)

// A watermark is a number that only increases, and can be waited for.
type watermark struct {
	at     atomic.Uint64
	mu     sync.Mutex // guards failed and orders the waiters; nothing else happens under it
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

// wait returns true when the mark is at least n, false if it never will be.
func (w *watermark) wait(n uint64) bool { return w.waitContext(context.Background(), n) }

// waitContext is wait, which also returns false when ctx is done.
func (w *watermark) waitContext(ctx context.Context, n uint64) bool {
	if w.at.Load() >= n {
		return true
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() {
			w.mu.Lock() // no waiter is between its check of ctx and its wait
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
