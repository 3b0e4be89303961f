package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/hapax-dev/hapax/engine"
)

// A stateCheck reads back what the consumers of a topic have left in their store: each event's counter and claim, and
// each partition's sum and offset. All have to agree.
type stateCheck struct {
	e        *opened
	produced *produced
	group    string // "": the store has no offsets
	progress Progress

	counts []uint32 // by event
	where  []int32  // the last partition that has counted it

	mu         sync.Mutex // guards what follows
	looked     uint64
	mismatches uint64
	first      string
}

// stateStep is how many keys or events are looked at in one go.
const stateStep = 1000

// checkState opens the store for it.
func checkState(ctx context.Context, o *consumeOrder, p *produced, progress Progress) (c *stateCheck, err error) {
	c = &stateCheck{produced: p, group: o.Group, progress: progress}
	c.counts, c.where = make([]uint32, p.log.limit()), make([]int32, p.log.limit())
	if o.Kind == offsetFirst {
		c.group = ""
	}
	if c.e, err = o.openStore(); err != nil {
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
	if cerr := c.e.Close(); err == nil {
		err = cerr
	}
	return c, err
}

// handled counts the events whose counters say so, and those that were counted more than once.
func (c *stateCheck) handled() (once, twice uint64) { return (&tally{counts: c.counts}).handled() }

// partition reads the counters of a partition, and compares them with its sum and its offset with its end.
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
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked += uint64(len(numbers))
	c.progress.tell("look at every event", c.looked, c.produced.distinct)
	return nil
}

func (c *stateCheck) wrong(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mismatches++; c.first == "" {
		c.first = fmt.Sprintf(format, args...)
	}
}
