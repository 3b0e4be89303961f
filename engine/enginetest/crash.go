package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-dev/hapax/engine"
)

// crash starts some claims and transactions whose batches do not become durable, cuts the power,
// and continues with the remaining state: all confirmed batches, and a prefix of the others, each
// whole or not at all.
func (c *checker) crash(t *rapid.T) {
	if err := c.e.Retention().Reclaimed(context.Background()); err != nil {
		c.Fatalf("waiting for background work: %v", err)
	}
	// All background work of Open is done when a transaction is the next batch.
	var steps []*facts
	var wg sync.WaitGroup
	answered := make(chan string, 8)
	c.gate.hold()
	now := c.told.clone()
	for i := range rapid.IntRange(0, 2).Draw(t, "unsynced") {
		ev := engine.Event{Scope: "crash", ID: fmt.Appendf(nil, "%d-%d", c.n, i), Time: c.clock, Origin: engine.Origin{Topic: "t", Offset: c.n}}
		k := claimKey{ev.Scope, c.week(), string(ev.ID)}
		if k.week < c.told.oldestOf(k.scope) {
			break
		}
		key := fmt.Sprint("crash", i)
		inTx := rapid.Bool().Draw(t, "in a transaction")
		before := c.gate.applied()
		wg.Go(func() {
			if inTx {
				_ = c.e.Update(context.Background(), func(tx *engine.Tx) error {
					_, err := tx.TryClaim(ev)
					return errors.Join(err, tx.Add([]byte("sum"), 1), tx.Put([]byte(key), ev.ID), tx.SetOffset(modelPosition(9), engine.Offset{Next: int64(i)}))
				})
			} else {
				_, _ = c.e.TryClaim(context.Background(), ev)
			}
			answered <- k.id
		})
		c.gate.awaitApply(before)
		now.claims[k] = c.newRecord(ev)
		if inTx {
			sum, there := now.host["sum"]
			now.host["sum"], _ = plus(sum, there, 1)
			now.host[key], now.offsets[9] = k.id, int64(i)
		}
		steps = append(steps, now.clone())
	}
	c.n++
	select {
	case id := <-answered:
		c.Fatalf("%q was answered before it was durable", id)
	case <-time.After(time.Millisecond):
	}
	to := c.h.CrashClone(c.test, c.gate.Store, c.dir, rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "survives"))
	c.gate.release()
	wg.Wait()
	c.shut()
	c.dir = to
	c.start()
	var with []string // the differences from each possible state, the latest first
	for i := len(steps) - 1; i >= 0; i-- {
		d := c.difference(steps[i])
		if d == "" {
			c.told = steps[i]
			return
		}
		with = append(with, d)
	}
	if d := c.difference(c.told); d != "" {
		c.Fatalf("after a crash: %s; %d batches were not durable, and it is not a prefix of them either: %q", d, len(steps), with)
	}
}
