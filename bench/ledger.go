package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

// A ledger is the parent's record of a run. It counts the reports of the processes about each
// event, and compares the store that they leave with the expected claims, counters and balances,
// and the offset of each partition. All of them must agree.
type ledger struct {
	log   *traffic.Log
	limit uint64 // events with smaller numbers are checked

	// told is 0 for an event without a report. Otherwise it is 1 plus the number of times that the
	// event was claimed or its handler started, at most 3.
	told  []uint8
	acked uint64 // events with a report

	// state is the expected business state and offsets; nil: there are none, and only the events
	// that must be claimed are checked.
	state *expected
	must  []bool    // by event: its claim must exist; nil: no claim must exist
	work  *Workload // nil: no balances

	counts []uint8 // by event: how often the state counts it
	where  []int32 // by event: the last partition that has counted it

	mu    sync.Mutex       // guards what follows
	truth map[string]int64 // the balances of the accounts according to the claims

	lost          uint64 // events that must be claimed and are not
	mismatches    uint64
	balancesWrong uint64
	first         string // the errors found
}

// Expected is the state after a log was read in a topic.
type expected struct {
	topic string
	group string   // "": the store has no offsets
	ends  []uint64 // by partition: the next offset is this
	open  bool     // the next offset may also be later
}

func newLedger(log *traffic.Log) *ledger {
	return &ledger{log: log, limit: log.Limit(), told: make([]uint8, log.N)}
}

// tell records a report about an event: that it was claimed or its handler starts, or that it was
// claimed before.
func (l *ledger) tell(number uint64, claimed bool) error {
	if number >= uint64(len(l.told)) {
		return errors.New("there is no such event")
	}
	if l.told[number] == 0 {
		l.told[number] = 1
		l.acked++
	}
	if claimed {
		l.told[number] = min(l.told[number]+1, 3)
		if l.told[number] == 3 {
			l.note("claimed twice: event %d", number)
		}
	}
	return nil
}

// done counts the events that were handled, and those that were handled more than once: according
// to the store if it has a state, otherwise according to the processes.
func (l *ledger) done() (handled, twice uint64) {
	if l.state != nil {
		return atLeast(l.counts, 1), atLeast(l.counts, 2)
	}
	return l.doneTold()
}

func (l *ledger) doneTold() (handled, twice uint64) { return atLeast(l.told, 2), atLeast(l.told, 3) }

func atLeast(counts []uint8, least uint8) (n uint64) {
	for _, count := range counts {
		if count >= least {
			n++
		}
	}
	return n
}

// claimStep claims at a time are looked up in the order of their keys, which saves reads of the
// store.
const claimStep = 1 << 16

// check compares all data of a store. Nothing is claimed meanwhile.
func (l *ledger) check(ctx context.Context, e *opened) error {
	l.truth = make(map[string]int64)
	if l.state != nil {
		l.counts, l.where = make([]uint8, l.limit), make([]int32, l.limit)
		for p := range l.state.ends {
			if err := l.partition(ctx, e, int32(p)); err != nil {
				return err
			}
		}
	}
	err := l.claims(ctx, e)
	if err == nil && l.work != nil {
		err = l.balances(ctx, e)
	}
	return err
}

// partition reads the counters of a partition, and compares its offset with its end.
func (l *ledger) partition(ctx context.Context, e *opened, p int32) error {
	for from := uint64(0); from < l.limit; from += countersPerKey {
		counters, err := readCounters(e.reader(ctx), p, from)
		if err != nil {
			return err
		}
		for i, count := range counters {
			if number := from + uint64(i); count > 0 && number < l.limit {
				l.counts[number] = uint8(min(int(l.counts[number])+int(count), 255))
				l.where[number] = p
			}
		}
	}
	if l.state.group == "" {
		return nil
	}
	o, _, err := e.Engine.Admin().Offset(ctx, engine.OffsetKey{Group: l.state.group, Topic: l.state.topic, Partition: p})
	if next, end := uint64(o.Next), l.state.ends[p]; err == nil && (next < end || next > end && !l.state.open) {
		l.wrong("partition %d: the next offset is %d, its end %d", p, next, end)
	}
	return err
}

// claims looks up claims, with a goroutine for each processor.
func (l *ledger) claims(ctx context.Context, e *opened) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	steps := make(chan []uint64)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for step := range steps {
				if err := l.lookUp(ctx, e, step); err != nil {
					cancel(err)
				}
			}
		})
	}
	var step []uint64
	err := l.log.Each(func(number uint64) error {
		if number >= l.limit || l.state == nil && !l.must[number] {
			return nil
		}
		if step = append(step, number); len(step) == claimStep {
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

// lookUp looks up some claims, in the order of their keys.
func (l *ledger) lookUp(ctx context.Context, e *opened, numbers []uint64) error {
	events := make([]*engine.Event, len(numbers))
	for i, n := range numbers {
		ev, _ := l.log.Source.Event(n, make([]byte, 0, 40)) // the offset of its origin is the number
		events[i] = &ev
	}
	slices.SortFunc(events, func(a, b *engine.Event) int {
		if c := a.Time.Compare(b.Time); c != 0 && a.Time.Sub(b.Time).Abs() > time.Hour {
			return c // another week
		}
		return bytes.Compare(a.ID, b.ID)
	})
	for i := range events {
		rec, found, err := e.Engine.Admin().Lookup(ctx, events[i].Scope, events[i].ID, events[i].Time)
		if err != nil {
			return err
		}
		l.claim(uint64(events[i].Origin.Offset), rec.Origin.Partition, found)
	}
	return nil
}

// claim compares the claim of an event.
func (l *ledger) claim(n uint64, partition int32, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !found && l.must != nil && l.must[n] {
		l.lost++
		l.note("lost: event %d", n)
	}
	if l.state == nil {
		return
	}
	switch counted := l.counts[n] > 0; {
	case found != counted:
		l.wrong("event %d: claimed %v, counted %v", n, found, counted)
	case found && partition != l.where[n]:
		l.wrong("event %d: claimed on partition %d, counted on %d", n, partition, l.where[n])
	}
	if l.work != nil && (found || !l.work.PerPartition) {
		p := l.log.Payment(n)
		l.truth[string(l.work.account(partition, p.From))] -= p.Amount
		l.truth[string(l.work.account(partition, p.To))] += p.Amount
	}
}

// balances compares the balance of each account with the expected one.
func (l *ledger) balances(ctx context.Context, e *opened) error {
	parts := len(l.state.ends)
	if !l.work.PerPartition {
		parts = 1
	}
	for p := range parts {
		for n := range l.work.Accounts {
			account := l.work.account(int32(p), n)
			balance, err := readBalance(e.reader(ctx), account)
			if err != nil {
				return err
			}
			if want := l.truth[string(account)]; balance != want {
				l.balancesWrong++
				l.note("%s: the balance is %d, the events say %d", account, balance, want)
			}
		}
	}
	return nil
}

func (l *ledger) wrong(format string, args ...any) {
	l.mismatches++
	l.note(format, args...)
}

// note keeps the first error.
func (l *ledger) note(format string, args ...any) {
	l.first = cmp.Or(l.first, fmt.Sprintf(format, args...))
}
