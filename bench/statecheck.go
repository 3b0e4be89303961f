package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/hapax-dev/hapax/engine"
)

// A stateCheck reads back what the consumers of a topic have left in their store: each event's
// counter and claim, and each partition's sum and offset. All have to agree.
type stateCheck struct {
	e        *opened
	produced *produced
	group    string // "": the store has no offsets
	progress Progress

	counts []uint32 // by event
	where  []int32  // the last partition that has counted it

	work *Workload // nil: no balances

	mu         sync.Mutex       // guards what follows
	truth      map[string]int64 // the balances of the accounts that are claimed to have been moved
	looked     uint64
	mismatches uint64
	first      string

	balancesWrong uint64
}

// stateStep is how many keys or events are looked at in one go.
const stateStep = 1000

// checkState opens the store for it.
func checkState(ctx context.Context, o *consumeOrder, p *produced, progress Progress) (c *stateCheck, err error) {
	c = &stateCheck{produced: p, group: o.Group, progress: progress}
	if o.Workload.Handler == BalancesHandler {
		c.work, c.truth = &o.Workload, make(map[string]int64)
	}
	c.counts, c.where = make([]uint32, p.log.limit()), make([]int32, p.log.limit())
	if o.Kind == offsetFirst {
		c.group = ""
	}
	if c.e, err = o.openStore(nil); err != nil {
		return c, err
	}
	for partition := range p.ends {
		if err = c.partition(ctx, int32(partition)); err != nil {
			break
		}
	}
	if err == nil {
		err = c.claims(ctx)
	}
	if err == nil && c.work != nil {
		err = c.balances(ctx)
	}
	if cerr := c.e.Close(); err == nil {
		err = cerr
	}
	return c, err
}

// handled counts the events whose counters say so, and those that were counted more than once.
func (c *stateCheck) handled() (once, twice uint64) { return (&tally{counts: c.counts}).handled() }

// partition reads the counters of a partition, and compares them with its sum and its offset with
// its end.
func (c *stateCheck) partition(ctx context.Context, p int32) error {
	var want partSum
	for from := uint64(0); from < c.produced.log.limit(); from += stateStep * countersPerKey {
		if err := c.counters(ctx, p, from, &want); err != nil {
			return err
		}
	}
	var got partSum
	var next int64
	err := c.e.Update(ctx, func(tx *engine.Tx) (err error) {
		if got, err = readPartSum(tx, p); err != nil || c.group == "" {
			return err
		}
		o, _, err := tx.Offset(engine.Position{Group: c.group, Topic: c.produced.Name, Partition: p})
		next = o.Next
		return err
	})
	if err != nil {
		return err
	}
	if got != want {
		c.wrong("partition %d: its sum says %+v, its counters say %+v", p, got, want)
	}
	if end := c.produced.ends[p]; c.group != "" && next != end {
		c.wrong("partition %d: the next offset is %d, its end %d", p, next, end)
	}
	return nil
}

// counters reads some keys of counters, from that of an event on.
func (c *stateCheck) counters(ctx context.Context, p int32, from uint64, sum *partSum) error {
	to := min(from+stateStep*countersPerKey, c.produced.log.limit())
	return c.e.Update(ctx, func(tx *engine.Tx) error {
		for ; from < to; from += countersPerKey {
			counters, err := readCounters(tx, p, from)
			if err != nil {
				return err
			}
			for i, count := range counters {
				if number := from + uint64(i); count > 0 && number < to {
					c.counts[number] += uint32(count)
					c.where[number] = p
					sum.add(number, uint64(count))
				}
			}
		}
		return nil
	})
}

// claims looks every event's claim up, with a goroutine for each processor.
func (c *stateCheck) claims(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	steps := make(chan []uint64)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for step := range steps {
				if err := c.look(ctx, step); err != nil {
					cancel(err)
				}
			}
		})
	}
	var step []uint64
	err := c.produced.log.each(func(number uint64) error {
		if step = append(step, number); len(step) == stateStep {
			steps <- step
			step = nil
		}
		return context.Cause(ctx)
	})
	steps <- step
	close(steps)
	all.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// look looks some claims up.
func (c *stateCheck) look(ctx context.Context, numbers []uint64) error {
	var arena []byte
	for _, n := range numbers {
		ev := c.produced.log.event(n, arena[:0])
		rec, found, err := c.e.Lookup(ctx, DefaultScope, ev.ID, ev.Time)
		if err != nil {
			return err
		}
		switch counted := c.counts[n] > 0; {
		case found != counted:
			c.wrong("event %d: claimed %v, counted %v", n, found, counted)
		case found && rec.Origin.Partition != c.where[n]:
			c.wrong("event %d: claimed on partition %d, counted on %d", n, rec.Origin.Partition, c.where[n])
		}
		if c.work != nil && (found || !c.work.PerPartition) {
			c.pay(rec.Origin.Partition, c.produced.log.payment(n))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked += uint64(len(numbers))
	c.progress.tell("look at every event", c.looked, c.produced.distinct)
	return nil
}

// pay does to the true balances what an event is to do once, on the partition that has claimed it.
func (c *stateCheck) pay(partition int32, p payment) {
	from, to := c.work.account(partition, p.From), c.work.account(partition, p.To)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.truth[string(from)] -= p.Amount
	c.truth[string(to)] += p.Amount
}

// balances compares the balance of each account with the true one.
func (c *stateCheck) balances(ctx context.Context) error {
	var accounts [][]byte
	for p := range c.produced.ends {
		for n := range c.work.Accounts {
			accounts = append(accounts, c.work.account(int32(p), n))
		}
		if !c.work.PerPartition {
			break
		}
	}
	for some := range slices.Chunk(accounts, stateStep) {
		err := c.e.Update(ctx, func(tx *engine.Tx) error {
			for _, account := range some {
				balance, err := readBalance(tx, account)
				if err != nil {
					return err
				}
				if want := c.truth[string(account)]; balance != want {
					c.balancesWrong++
					c.note("%s: the balance is %d, the events say %d", account, balance, want)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *stateCheck) wrong(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mismatches++
	c.note(format, args...)
}

// note keeps the first of what is wrong.
func (c *stateCheck) note(format string, args ...any) {
	if c.first == "" {
		c.first = fmt.Sprintf(format, args...)
	}
}
