package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
)

// Settings of RunAdds.
const (
	addWorkers = 6
	addRounds  = 120
	addKeys    = 50
)

// RunAdds runs several goroutines that add to the same 50 keys of an engine on the store that h
// opens. Each transaction moves an amount between two keys, so that their sum stays 0, and counts
// itself under a key of its goroutine. The sums are checked at the end, after a close, and after
// power failures during the run.
func RunAdds(t *testing.T, h storetest.Harness) {
	a := &adding{T: t, h: h, dir: filepath.Join(t.TempDir(), "store")}
	a.open()
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		a.watch(stop)
	}()
	var workers sync.WaitGroup
	for worker := range addWorkers {
		workers.Go(func() { a.work(worker) })
	}
	workers.Wait()
	close(stop)
	<-watched
	var whole [addWorkers]int64
	for worker := range whole {
		whole[worker] = addRounds
	}
	a.check(a.e, whole, whole)
	a.close()
	a.open()
	a.check(a.e, whole, whole)
	a.close()
	a.checkClones()
}

type adding struct {
	*testing.T
	h   storetest.Harness
	dir string
	s   storage.Store
	e   *engine.Engine

	begun, done [addWorkers]atomic.Int64 // transactions of a worker
	clones      []addClone
}

// An addClone is the state after a power failure, with the numbers of transactions of each worker
// that were done before it, and begun by then.
type addClone struct {
	dir        string
	done, most [addWorkers]int64
}

func (a *adding) open() {
	a.Helper()
	s, err := a.h.Open(a.T, a.dir)
	if err != nil {
		a.Fatal(err)
	}
	if a.e, err = engine.Open(s, engine.Options{ExpectedPerWeek: 100}); err != nil {
		a.Fatal(errors.Join(err, s.Close()))
	}
	a.s = s
}

func (a *adding) close() {
	a.Helper()
	if err := a.e.Close(); err != nil {
		a.Error(err)
	}
}

func addKey(i int) []byte { return fmt.Appendf(nil, "account/%02d", i) }

func tallyKey(worker int) []byte { return fmt.Appendf(nil, "tally/%d", worker) }

func (a *adding) work(worker int) {
	rnd := rand.New(rand.NewPCG(uint64(worker), 1))
	for round := range addRounds {
		a.begun[worker].Add(1)
		from, to, amount := addKey(rnd.IntN(addKeys)), addKey(rnd.IntN(addKeys)), rnd.Int64N(1000)
		err := a.e.Update(context.Background(), func(tx *engine.Tx) error {
			point, err := tx.Savepoint()
			if round%3 == 0 { // a part that is rolled back
				err = errors.Join(err, tx.Add(from, 1_000_000), tx.RollbackTo(point))
			}
			if round%10 == 0 { // a read, and a write that others add to
				value, found, gerr := tx.Get(from)
				n := int64(0)
				if gerr == nil && found {
					n, gerr = engine.DecodeInt64(value)
				}
				err = errors.Join(err, gerr, tx.Put(from, engine.EncodeInt64(n-amount)))
			} else {
				err = errors.Join(err, tx.Add(from, -amount))
			}
			return errors.Join(err, tx.Add(to, amount), tx.Add(tallyKey(worker), 1))
		}, engine.Retries(1000))
		if err != nil {
			a.Errorf("worker %d, round %d: %v", worker, round, err)
			return
		}
		a.done[worker].Add(1)
	}
}

// watch simulates power failures, on copies.
func (a *adding) watch(stop <-chan struct{}) {
	if a.h.CrashClone == nil || !a.h.AtomicClone {
		return
	}
	for len(a.clones) < 8 {
		select {
		case <-stop:
			return
		default:
		}
		var c addClone
		for worker := range c.done {
			c.done[worker] = a.done[worker].Load()
		}
		c.dir = a.h.CrashClone(a.T, a.s, a.dir, 50*(len(a.clones)%3))
		for worker := range c.most {
			c.most[worker] = a.begun[worker].Load()
		}
		a.clones = append(a.clones, c)
	}
}

func (a *adding) checkClones() {
	for _, c := range a.clones {
		a.dir = c.dir
		a.open()
		a.check(a.e, c.done, c.most)
		if a.Failed() {
			a.Fatalf("after a power failure, with %v transactions done before", c.done)
		}
		a.close()
	}
}

// check reads all sums from one snapshot.
func (a *adding) check(e *engine.Engine, least, most [addWorkers]int64) {
	a.Helper()
	total := int64(0)
	var tally [addWorkers]int64
	err := e.Update(context.Background(), func(tx *engine.Tx) error {
		for kv, err := range tx.Scan(engine.Range{}) {
			if err != nil {
				return err
			}
			n, err := engine.DecodeInt64(kv.Value)
			if err != nil {
				return err
			}
			if worker, ok := strings.CutPrefix(string(kv.Key), "tally/"); ok {
				tally[worker[0]-'0'] = n
			} else {
				total += n
			}
		}
		return nil
	})
	if err != nil || total != 0 {
		a.Errorf("the accounts add up to %d, %v; want 0", total, err)
	}
	for worker, n := range tally {
		if n < least[worker] || n > most[worker] {
			a.Errorf("worker %d has %d transactions, want %d to %d", worker, n, least[worker], most[worker])
		}
	}
}
