package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// A consumerKind is how a consumer decides which events it handles, and when it commits.
type consumerKind string

const (
	adapterOwn  consumerKind = consumerKind(Own)  // the adapter, at most once
	adapterWork consumerKind = consumerKind(Work) // the adapter, with the work
	rawLoop     consumerKind = "raw"              // polls and does nothing: the upper bound
	atLeastOnce consumerKind = "at least once"    // handles all records, then commits
	// the same, except for the events of a set in its memory; it claims there first
	memorySet   consumerKind = "in-memory set"
	engineAlone consumerKind = "engine alone" // claims the events of the log without a broker
	// commits, then claims and works in one transaction: the broken rule
	offsetFirst consumerKind = "offset first"
)

// name returns the kind in the names of groups and files.
func (k consumerKind) name() string { return strings.ReplaceAll(string(k), " ", "-") }

// A consumeOrder is a worker that consumes a topic. It consumes until it has read to the topic's
// ends, is a static member of its group, and reports
//
//	from      where it continues (see gateOrder)
//	here      it has come to the point of the kill
//	at        how far it has come: a progress
//	handling  the number of an event whose handler begins, of consumers without business state
//	returned  that handler has returned, in mode own
//	measured  see measurement, if nothing is to kill it
type consumeOrder struct {
	Kind         consumerKind
	Seeds        []string
	Topic, Group string
	Ends         []int64
	Limit        uint64   // the numbers of events are below it
	Log          topicLog // of engineAlone

	Store StoreName
	Dir   string
	Weeks int // of retention
	Batch int // the maximum number of records of one batch; 0 = the adapter's default

	SlowSync time.Duration // of the store

	Measure bool // measure the time, with only the handler of the workload

	Workload Workload // of the adapter
	gateOrder
}

// openStore opens the engine of a consumer's store.
func (o *consumeOrder) openStore(observer engine.Observer) (*opened, error) {
	return openEngine(o.Store, o.Dir, tuning{slowSync: o.SlowSync}, engine.Options{RetentionWeeks: o.Weeks, Observer: observer})
}

// A progress is how far a consumer has come, and the work of one process of a consumer through the
// adapter so far. It excludes the last milliseconds before a kill.
type progress struct {
	At        uint64
	Calls     uint64 // of the handler
	Conflicts uint64 // runs of transactions that conflicted
}

// A consuming is one consumer's run through a topic, over all its processes.
type consuming struct {
	*produced
	order    consumeOrder
	kills    []kill
	way      uint64 // its length, in the units of the gate
	stage    string
	progress Progress
	tell     func(sentence string) // nil: none

	killed   int
	seconds  float64
	handling []uint32 // by event: how often its handler has begun, for consumers without business state
	returned uint64   // handlers that have returned, in mode own
	atRisk   uint64   // events that were claimed and whose handler had not returned at a kill
	measured measurement
	done     progress // over all processes
}

// run starts the consumer, kills it as planned, restarts it, and returns when it has reached the
// end.
func (c *consuming) run(ctx context.Context) error {
	defer stopwatch(&c.seconds)()
	c.handling = make([]uint32, c.order.Limit)
	var now progress // of the running process
	reach := func(at uint64) {
		now.At = max(now.At, at)
		c.progress.tell(c.stage, now.At, c.way)
	}
	l := lives{kills: c.kills}
	l.worker = func(k kill) worker {
		c.ended(now)
		if c.tell != nil && l.killed > 0 {
			c.tell(fmt.Sprintf("  killed with SIGKILL after %s of %s events, restarted", thousands(now.At), thousands(c.way)))
		}
		order := c.order
		order.gateOrder, now = k.gateOrder, progress{}
		return &order
	}
	l.hear = map[string]hearing{
		"from": hears(func(from uint64) error {
			reach(from)
			if c.order.Kind == adapterOwn { // the handlers of the previous process are dead
				c.atRisk = less(from, c.returned)
			}
			return nil
		}),
		"at": hears(func(p progress) error {
			now.Calls, now.Conflicts = p.Calls, p.Conflicts
			reach(p.At)
			return nil
		}),
		"handling": hears(func(number uint64) error {
			if number >= c.order.Limit {
				return errors.New("there is no such event")
			}
			c.handling[number]++
			return nil
		}),
		"returned": func([]byte) error { c.returned++; return nil },
		"measured": hears(func(m measurement) error { c.measured = m; return nil }),
	}
	err := l.run(ctx)
	c.ended(now)
	if c.killed = l.killed; err != nil && ctx.Err() == nil {
		err = fmt.Errorf("consumer %q: at %d of %d: %w", c.order.Kind, now.At, c.way, err)
	}
	return err
}

// ended counts the work of a process.
func (c *consuming) ended(life progress) {
	c.done.Calls += life.Calls
	c.done.Conflicts += life.Conflicts
}

// An outcome is the result for the events.
type outcome struct {
	handled, twice            uint64
	mismatches, balancesWrong uint64
	first                     string // the errors found
}

// count reads the results of the consumer's processes from its store, or from their reports.
func (c *consuming) count(ctx context.Context) (o outcome, err error) {
	switch c.order.Kind {
	case adapterWork, offsetFirst:
		l, err := checkState(ctx, &c.order, c.produced, c.progress)
		o = outcome{mismatches: l.mismatches, balancesWrong: l.balancesWrong, first: l.first}
		o.handled, o.twice = handled(l.counts)
		return o, err
	case adapterOwn:
		o.mismatches = apart(c.distinct, c.returned+c.atRisk)
	}
	o.handled, o.twice = handled(c.handling)
	return o, nil
}

// checkState opens the store of a topic's consumers, and compares all of it.
func checkState(ctx context.Context, o *consumeOrder, p *produced, progress Progress) (l *ledger, err error) {
	state := &expected{topic: p.Name, group: o.Group}
	for _, end := range p.ends {
		state.ends = append(state.ends, uint64(end))
	}
	if o.Kind == offsetFirst {
		state.group = ""
	}
	l = &ledger{log: p.log, limit: p.log.limit(), progress: progress, state: state}
	if o.Workload.Handler == BalancesHandler {
		l.work = &o.Workload
	}
	if l.e, err = o.openStore(nil); err != nil {
		return l, err
	}
	err = l.check(ctx)
	if cerr := l.e.Close(); err == nil {
		err = cerr
	}
	return l, err
}

// A measurement is the report of a consumer that was not killed.
type measurement struct {
	// Seconds are from the first fetched record to the last one's offset, CPUSeconds the processor
	// time of the process meanwhile, user and system; 0 if it is unknown.
	Seconds, CPUSeconds float64
	// Handled counts events (for a plain loop: records), Claims those of the engine.
	Handled, Claims uint64
	// Spread is how many times as far the first partition has come as the last one, each as a share
	// of its records, when half of all records are done. 0 for a plain loop.
	Spread float64
}
