package bench

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A ledger compares a store's contents for the events of a log with the expected ones: claims,
// counters, and for each partition the offset. All of them have to agree.
type ledger struct {
	e        *opened
	log      *topicLog
	limit    uint64 // events with smaller numbers are checked
	progress Progress

	// State is the expected business state and offsets; nil: there are none, and only the events
	// that must be claimed are checked.
	state *expected
	must  []bool    // by event: its claim must exist; nil: none must
	work  *Workload // nil: no balances

	counts []uint32 // by event: how often the state counts it
	where  []int32  // the last partition that has counted it

	mu    sync.Mutex       // guards what follows
	truth map[string]int64 // the balances of the accounts according to the claims
	look  uint64

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
	open  bool     // or a later one
}

// claimStep claims are looked up in the order of their keys, which saves reads of the store; each
// lookStep of them is reported as progress.
const (
	lookStep  = 1000
	claimStep = 1 << 16
)

// check compares all data. Nothing is claimed meanwhile.
func (l *ledger) check(ctx context.Context) error {
	l.truth = make(map[string]int64)
	if l.state != nil {
		l.counts, l.where = make([]uint32, l.limit), make([]int32, l.limit)
		for p := range l.state.ends {
			if err := l.partition(ctx, int32(p)); err != nil {
				return err
			}
		}
	}
	err := l.claims(ctx)
	if err == nil && l.work != nil {
		err = l.balances(ctx)
	}
	return err
}

// handled counts the events that were handled, and those that were handled more than once.
func handled(counts []uint32) (once, twice uint64) {
	for _, n := range counts {
		if n > 0 {
			once++
		}
		if n > 1 {
			twice++
		}
	}
	return once, twice
}

// partition reads the counters of a partition, and compares its offset with its end.
func (l *ledger) partition(ctx context.Context, p int32) error {
	for from := uint64(0); from < l.limit; from += countersPerKey {
		counters, err := readCounters(l.reader(ctx), p, from)
		if err != nil {
			return err
		}
		for i, count := range counters {
			if number := from + uint64(i); count > 0 && number < l.limit {
				l.counts[number] += uint32(count)
				l.where[number] = p
			}
		}
	}
	if l.state.group == "" {
		return nil
	}
	o, _, err := l.e.Offset(ctx, engine.Position{Group: l.state.group, Topic: l.state.topic, Partition: p})
	if next, end := uint64(o.Next), l.state.ends[p]; err == nil && (next < end || next > end && !l.state.open) {
		l.wrong("partition %d: the next offset is %d, its end %d", p, next, end)
	}
	return err
}

// reader reads keys of a store that nothing changes.
func (l *ledger) reader(ctx context.Context) reader {
	return func(key []byte) ([]byte, bool, error) { return l.e.Get(ctx, key) }
}

// claims looks claims up, with a goroutine for each processor.
func (l *ledger) claims(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	steps := make(chan []uint64)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for step := range steps {
				if err := l.lookUp(ctx, step); err != nil {
					cancel(err)
				}
			}
		})
	}
	var step []uint64
	err := l.log.each(func(number uint64) error {
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

// lookUp looks some claims up, in the order of their keys.
func (l *ledger) lookUp(ctx context.Context, numbers []uint64) error {
	events := make([]engine.Event, len(numbers))
	for i, n := range numbers {
		events[i] = l.log.event(n, make([]byte, 0, 40))
		events[i].Origin.Offset = int64(n)
	}
	slices.SortFunc(events, func(a, b engine.Event) int {
		if c := a.Time.Compare(b.Time); c != 0 && a.Time.Sub(b.Time).Abs() > time.Hour {
			return c // another week
		}
		return bytes.Compare(a.ID, b.ID)
	})
	for i := range events {
		if err := l.lookOne(ctx, &events[i]); err != nil {
			return err
		}
		if i%lookStep == lookStep-1 || i == len(events)-1 {
			l.mu.Lock()
			l.look += uint64(i%lookStep + 1)
			l.progress.tell("look at every event", l.look, l.limit)
			l.mu.Unlock()
		}
	}
	return nil
}

// lookOne compares the claim of an event, whose number is its origin's offset.
func (l *ledger) lookOne(ctx context.Context, ev *engine.Event) error {
	n := uint64(ev.Origin.Offset)
	rec, found, err := l.e.Lookup(ctx, ev.Scope, ev.ID, ev.Time)
	if err != nil {
		return err
	}
	if !found && l.must != nil && l.must[n] {
		l.mu.Lock()
		l.lost++
		l.note("lost: event %d", n)
		l.mu.Unlock()
	}
	if l.state == nil {
		return nil
	}
	switch counted := l.counts[n] > 0; {
	case found != counted:
		l.wrong("event %d: claimed %v, counted %v", n, found, counted)
	case found && rec.Origin.Partition != l.where[n]:
		l.wrong("event %d: claimed on partition %d, counted on %d", n, rec.Origin.Partition, l.where[n])
	}
	if l.work != nil && (found || !l.work.PerPartition) {
		l.pay(rec.Origin.Partition, l.log.payment(n))
	}
	return nil
}

// pay applies the effect of an event to the expected balances, on the partition that has claimed
// it.
func (l *ledger) pay(partition int32, p payment) {
	from, to := l.work.account(partition, p.From), l.work.account(partition, p.To)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.truth[string(from)] -= p.Amount
	l.truth[string(to)] += p.Amount
}

// balances compares the balance of each account with the expected one.
func (l *ledger) balances(ctx context.Context) error {
	parts := len(l.state.ends)
	if !l.work.PerPartition {
		parts = 1
	}
	for p := range parts {
		for n := range l.work.Accounts {
			account := l.work.account(int32(p), n)
			balance, err := readBalance(l.reader(ctx), account)
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mismatches++
	l.note(format, args...)
}

// note keeps the first error.
func (l *ledger) note(format string, args ...any) {
	if l.first == "" {
		l.first = fmt.Sprintf(format, args...)
	}
}
