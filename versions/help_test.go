package versions_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/versions"
)

var ctx = context.Background()

// A clock is a clock that the test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func openEngine(t testing.TB, s storage.Store, c *clock) *engine.Engine {
	t.Helper()
	e, err := engine.Open(s, engine.Options{Clock: c.now, ExpectedPerWeek: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func newMem() *storetest.Mem { return storetest.NewMem(storage.Identity{}) }

func mustTable(t testing.TB, e *engine.Engine, o versions.Options) *versions.Table {
	t.Helper()
	table, err := versions.New(e, "rows", o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// put puts rows in one transaction.
func put(t testing.TB, e *engine.Engine, table *versions.Table, rows ...versions.Row) {
	t.Helper()
	err := e.Update(ctx, func(tx *engine.Tx) error {
		in := table.In(tx)
		for _, r := range rows {
			if err := in.Put(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// watch returns the stores that power failures would leave, before and after each batch.
func watch(mem *storetest.Mem, cuts chan<- *cut) {
	for _, op := range []storetest.Op{storetest.OpApply, storetest.OpWait, storetest.OpReclaimState} {
		mem.Before(op, func(call int) error {
			for kept := range min(mem.Unsynced(), 2) + 1 {
				cuts <- &cut{fmt.Sprint(op, " ", call, ", ", kept, " kept"), mem.CrashClone(kept)}
			}
			return nil
		})
	}
}
