package engine

import (
	"sync"
)

// reclaim tracks whether space is being freed.
type reclaim struct {
	turn sync.Mutex // held while the store frees space

	mu   sync.Mutex // guards the fields below
	n    int
	done chan struct{} // closed when n falls to zero
}

func (r *reclaim) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == 0 {
		r.done = make(chan struct{})
	}
	r.n++
}

func (r *reclaim) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 {
		close(r.done)
	}
}

// idle returns a channel that is closed when no space is being freed.
func (r *reclaim) idle() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		close(r.done)
	}
	return r.done
}
