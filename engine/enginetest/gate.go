package enginetest

import (
	"sync"

	"github.com/hapax-dev/hapax/engine/storage"
)

// A gate is a store whose waits can be held back before they reach the store, so that no call of
// the store is in progress.
type gate struct {
	storage.Store
	mu      sync.Mutex
	changed *sync.Cond
	held    bool
	applies int
}

func (g *gate) Apply(b *storage.Batch) (func() error, error) {
	wait, err := g.Store.Apply(b)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.applies++
	g.changed.Broadcast()
	return func() error {
		g.mu.Lock()
		for g.held {
			g.changed.Wait()
		}
		g.mu.Unlock()
		return wait()
	}, err
}

func (g *gate) applied() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.applies
}

func (g *gate) awaitApply(more int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.applies <= more {
		g.changed.Wait()
	}
}

func (g *gate) hold()    { g.set(true) }
func (g *gate) release() { g.set(false) }

func (g *gate) set(held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = held
	g.changed.Broadcast()
}
