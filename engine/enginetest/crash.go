package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
)

// crash hands over some claims and transactions whose batches do not get durable, cuts the power,
// and continues with what is found: all that was confirmed, and of the rest a prefix, each whole or
// not at all.
func (m *model) crash(t *rapid.T) {
	if err := m.e.Reclaimed(context.Background()); err != nil {
		m.Fatalf("waiting for what runs behind: %v", err)
	}
	// Whatever opening began in the background is done when a transaction of Hapax is the next
	// batch.
	var steps []*facts
	var wg sync.WaitGroup
	answered := make(chan string, 8)
	m.gate.hold()
	now := m.told.clone()
	for i := range rapid.IntRange(0, 2).Draw(t, "unsynced") {
		ev := engine.Event{Scope: "crash", ID: fmt.Appendf(nil, "%d-%d", m.n, i), Time: m.clock, Origin: engine.Origin{Topic: "t", Offset: m.n}}
		k := claimKey{ev.Scope, m.week(), string(ev.ID)}
		if k.week < m.oldestOf(k.scope) {
			break
		}
		key := fmt.Sprint("crash", i)
		inTx := rapid.Bool().Draw(t, "in a transaction")
		before := m.gate.applied()
		wg.Go(func() {
			if inTx {
				_ = m.e.Update(context.Background(), func(tx *engine.Tx) error {
					_, err := tx.TryClaim(ev)
					return errors.Join(err, tx.Add([]byte("sum"), 1), tx.Put([]byte(key), ev.ID), tx.SetOffset(modelPosition(9), engine.Offset{Next: int64(i)}))
				})
			} else {
				_, _ = m.e.TryClaim(context.Background(), ev)
			}
			answered <- k.id
		})
		m.gate.awaitApply(before)
		now.claims[k] = m.newRecord(ev)
		if inTx {
			sum, there := now.host["sum"]
			now.host["sum"], _ = plus(sum, there, 1)
			now.host[key], now.offsets[9] = k.id, int64(i)
		}
		steps = append(steps, now.clone())
	}
	m.n++
	select {
	case id := <-answered:
		m.Fatalf("%q was answered before it was durable", id)
	case <-time.After(time.Millisecond):
	}
	to := m.h.CrashClone(m.test, m.gate.Store, m.dir, rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "survives"))
	m.gate.release()
	wg.Wait()
	m.shut()
	m.dir = to
	m.start()
	for i := len(steps) - 1; i >= 0; i-- {
		if m.difference(steps[i]) == "" {
			m.told = steps[i]
			return
		}
	}
	if d := m.difference(m.told); d != "" {
		m.Fatalf("after a crash: %s; %d batches were not durable, and it is not a prefix of them either", d, len(steps))
	}
}

// A gate is a store whose waits can be held back before they reach it, so that no call of it is
// under way meanwhile.
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
