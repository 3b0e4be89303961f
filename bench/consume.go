package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hapax-dev/hapax/engine"
)

// A consumerKind is how a consumer decides what it handles, and when it says that it has.
type consumerKind string

const (
	adapterOwn  consumerKind = consumerKind(Own)  // the adapter, own-commit
	adapterWork consumerKind = consumerKind(Work) // the adapter, with the work
	rawLoop     consumerKind = "raw"              // polls and does nothing: the ceiling
	atLeastOnce consumerKind = "at least once"    // handles everything, then commits
	memorySet   consumerKind = "in-memory set"    // the same, but for what is in a set in its memory; it claims there first
	engineAlone consumerKind = "engine alone"     // claims the events of the log without a broker
	offsetFirst consumerKind = "offset first"     // commits, then claims and works in one transaction: the rule broken
)

// name is the kind in the names of groups and files.
func (k consumerKind) name() string { return strings.ReplaceAll(string(k), " ", "-") }

// A consumeOrder is a worker that consumes a topic. It consumes until it has read to the
// topic's ends, is a static member of its group, and says
//
//	from      where it continues (see gateOrder)
//	here      it has come to the point of the kill
//	at        how far it has come
//	effort    see effort
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
	Batch int // the most records of one batch; 0 = the adapter's default

	Effects  string // the file to write what is handled to
	Returned string // the file that grows by a byte with each return of a handler
	Measure  bool   // take the time, with nothing but the handler of the workload

	Workload Workload // of the adapter
	gateOrder
}

// openStore opens the engine of a consumer's store.
func (o *consumeOrder) openStore(observer engine.Observer) (*opened, error) {
	return openEngine(o.Store, o.Dir, false, engine.Options{RetentionWeeks: o.Weeks, Observer: observer})
}

// A consuming is one consumer's way through a topic, over all its lives.
type consuming struct {
	*produced
	order    consumeOrder
	kills    []kill
	way      uint64 // its length, in what the gate counts
	stage    string
	progress Progress
	tell     func(sentence string) // nil: nobody

	killed   int
	seconds  float64
	atRisk   uint64 // events that were claimed and whose handler had not returned at a kill
	measured measurement
	effort   effort // over all lives
}

// run starts the consumer, kills it as planned, starts it again, and returns when it has come to
// the end.
func (c *consuming) run(ctx context.Context) error {
	defer stopwatch(&c.seconds)()
	at := uint64(0)
	var now effort // of the process that runs
	ended := func() {
		c.effort.add(now)
		now = effort{}
	}
	l := lives{kills: c.kills}
	l.worker = func(k kill) worker {
		ended()
		if c.tell != nil && l.killed > 0 {
			c.tell(fmt.Sprintf("  killed with SIGKILL after %s of %s events, restarted", thousands(at), thousands(c.way)))
		}
		order := c.order
		order.gateOrder, at = k.gateOrder, 0
		return &order
	}
	reached := func(n uint64) (moved bool) {
		moved, at = n > at, max(n, at)
		c.progress.tell(c.stage, n, c.way)
		return moved
	}
	l.began = func(from uint64) error {
		reached(from)
		if c.order.Kind != adapterOwn {
			return nil
		}
		returned, err := fileSize(c.order.Returned) // the handlers of the life before are dead
		c.atRisk = less(from, returned)
		return err
	}
	l.hear = map[string]hearing{
		"at":       notices(func(n uint64) (bool, error) { return reached(n), nil }),
		"effort":   notices(func(e effort) (bool, error) { now = e; return false, nil }),
		"measured": notices(func(m measurement) (bool, error) { c.measured = m; return false, nil }),
	}
	err := l.run(ctx)
	ended()
	if c.killed = l.killed; err != nil && ctx.Err() == nil {
		err = fmt.Errorf("consumer %q: at %d of %d: %w", c.order.Kind, at, c.way, err)
	}
	return err
}

// An outcome is what came of the events.
type outcome struct {
	handled, twice            uint64
	mismatches, balancesWrong uint64
	first                     string // of what is wrong
}

// count looks at what the lives of the consumer have left: its store, or the files of its handlers.
func (c *consuming) count(ctx context.Context) (o outcome, err error) {
	if c.order.Kind == adapterWork || c.order.Kind == offsetFirst {
		l, err := checkState(ctx, &c.order, c.produced, c.progress)
		o = outcome{mismatches: l.Mismatches, balancesWrong: l.balancesWrong, first: l.First}
		o.handled, o.twice = l.handled()
		return o, err
	}
	t, err := readEffects(c.order.Effects, c.log)
	o.handled, o.twice = t.handled()
	if err == nil && c.order.Kind == adapterOwn {
		var returned uint64
		returned, err = fileSize(c.order.Returned)
		o.mismatches = apart(c.distinct, returned+c.atRisk)
	}
	return o, err
}

// fileSize is 0 for a file that is not there.
func fileSize(path string) (uint64, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return uint64(info.Size()), nil
}

// checkState opens the store that the consumers of a topic have left, and compares all of it.
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

// A measurement is what a consumer says that nothing has killed.
type measurement struct {
	// Seconds are from the first fetched record to the last one's offset.
	Seconds float64
	// Handled events (of a plain loop: records), and what the engine holds.
	Handled, Claims uint64
	// Spread is how many times as far the first partition has come as the last one, each as a share
	// of its records, when half of all records are done. 0 of a plain loop.
	Spread float64
}

// An effort is what one life of a consumer through the adapter has done. What it did in the last
// milliseconds before a kill is not in it.
type effort struct {
	Calls     uint64 // of the handler
	Conflicts uint64 // runs of transactions that lost against another one
}

func (e *effort) add(more effort) {
	e.Calls += more.Calls
	e.Conflicts += more.Conflicts
}
