package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/telemetry"
)

// A consumerKind is how a consumer decides which events it handles, and when it commits.
type consumerKind string

const (
	adapterOwn  consumerKind = consumerKind(Own)  // the adapter, at most once
	adapterWork consumerKind = consumerKind(Work) // the adapter, with the work
	rawLoop     consumerKind = "raw"              // polls and does nothing: the upper bound
	atLeastOnce consumerKind = "at least once"    // handles all records, then commits
	// like atLeastOnce, but skips events that are in a set in memory; it adds to the set before it
	// handles
	memorySet   consumerKind = "in-memory set"
	engineAlone consumerKind = "engine alone" // claims the events of the log without a broker
	// commits, then claims and works in one transaction: the broken rule
	offsetFirst consumerKind = "offset first"
)

// name returns the kind as it appears in the names of groups and files.
func (k consumerKind) name() string { return strings.ReplaceAll(string(k), " ", "-") }

// A consumer is a process that consumes a topic. It consumes until it has read to the topic's ends,
// is a static member of its group, and reports
//
//	from      where it continues (see runner.GateOrder)
//	here      it has come to the point of the kill
//	at        how far it has come: a progress
//	handling  the number of an event whose handler begins, of consumers without business state
//	returned  that handler has returned, in mode own
//	idle      see idling, of the adapter
//	measured  see measurement, if nothing is to kill it
type consumer struct {
	Kind         consumerKind
	Seeds        []string
	Topic, Group string
	Ends         []int64
	Limit        uint64      // the numbers of events are below it
	Log          traffic.Log // of engineAlone

	Store StoreName
	Dir   string
	Weeks int // of retention
	Batch int // the maximum number of records of one batch; 0 = the adapter's default

	SlowSync time.Duration // of the store

	Idle time.Duration // measure the processor time for so long after the last record

	Measure bool // measure the time, with only the handler of the workload

	Workload Workload // of the adapter
	Gate     runner.GateOrder
}

// Do implements runner.Work.
func (c *consumer) Do(say *runner.Voice) error {
	switch c.Kind {
	case adapterOwn, adapterWork:
		return c.consumeWithAdapter(say)
	case engineAlone:
		return c.claimAlone(say)
	}
	return c.consumePlain(say)
}

// openStore opens the engine of a consumer's store.
func (c *consumer) openStore(observer engine.Observer) (*opened, error) {
	return openEngine(c.Store, c.Dir, tuning{slowSync: c.SlowSync}, engine.Options{RetentionWeeks: c.Weeks, Observer: observer})
}

// claimAlone claims all events of the log, in their order, without a broker, to measure the engine
// alone. There are as many callers as the topic has partitions, each with batches of the adapter's
// maximum size, and every batch is durable. Events are generated while the clock is stopped.
func (c *consumer) claimAlone(say *runner.Voice) error {
	e, err := c.openStore(nil)
	if err != nil {
		return err
	}
	j := newJudged()
	f, err := j.all(context.Background(), &feeding{
		source: c.Log.Source, n: c.Log.N, repeats: c.Log.Dup,
		plan:     callers.Plan{Callers: len(c.Ends), Batch: kafkaadapter.DefaultMaxBatch},
		progress: func(done uint64) { say.Line("at", progress{At: done}) },
	}, e)
	if err != nil {
		return err
	}
	say.Line("measured", measurement{Seconds: f.took.Seconds(), Handled: j.claimed, Claims: j.claimed})
	return e.Engine.Close()
}

// A progress is how far a consumer has come, and the work of one process of a consumer through the
// adapter so far. It excludes the last milliseconds before a kill.
type progress struct {
	At        uint64
	Calls     uint64 // of the handler
	Conflicts uint64 // runs of transactions that conflicted
}

// A measurement is the report of a consumer that was not killed.
type measurement struct {
	// Seconds is the time from the first fetched record to the offset of the last one. CPUSeconds
	// is the processor time of the process in that time, user and system; 0 if it is unknown.
	Seconds, CPUSeconds float64
	// Handled counts events, or records for a plain loop. Claims counts claims of the engine.
	Handled, Claims uint64
	// Spread is the progress of the fastest partition divided by that of the slowest, each as a
	// share of its records, when half of all records are done. 0 for a plain loop.
	Spread float64
}

// An idling is what a consumer reports of its partitions: how long it took until all were read, in
// seconds, how many stops there were, and the processor time without records, in percent of a core.
type idling struct {
	AllRunning float64
	Stops      uint64
	CPU        float64
}

// A firstFetch knows when the first records arrived, and the processor time of the process then.
type firstFetch struct {
	clock topics.Clock
	used  time.Duration
}

func newFirstFetch() *firstFetch {
	f := &firstFetch{}
	f.clock.Started = func() { f.used = processTime() }
	return f
}

// since returns the time since the first records arrived, and the processor time that the process
// has used since then.
func (f *firstFetch) since() measurement {
	return measurement{Seconds: f.clock.Seconds(), CPUSeconds: (processTime() - f.used).Seconds()}
}

// mostAttempts exceeds the number of kills of any run: a record whose handler is killed must be
// retried.
const mostAttempts = 1 << 20

// consumerOptions returns the options of a consumer that is the only member of its group.
func consumerOptions(seeds []string, group string, routes ...kafkaadapter.Route) kafkaadapter.Options {
	return kafkaadapter.Options{
		Group: group, Routes: routes, Client: []kgo.Opt{kgo.SeedBrokers(seeds...)},
		Membership: kafkaadapter.Static(topics.Instance),
		Telemetry:  telemetry.Options{Logger: warnings()},
	}
}

func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// eachMetric calls do with each metric that has the name.
func eachMetric(from prometheus.Gatherer, name string, do func(*dto.Metric)) error {
	families, err := from.Gather()
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				do(m)
			}
		}
	}
	return err
}

// A consuming is one consumer's run through a topic, over all its processes.
type consuming struct {
	consumer consumer // without its gate
	topic    *topics.Filled
	kills    []runner.Kill
	way      uint64                // the length of the run, in the units of the gate
	tell     func(sentence string) // nil: none

	ledger   *ledger
	killed   int
	seconds  float64
	returned uint64 // mode own: handlers that have returned
	atRisk   uint64 // events that were claimed and whose handler had not returned at a kill
	measured measurement
	idle     idling
	done     progress // over all processes
}

// run starts the consumer, kills it as planned, restarts it, and returns when it has reached the
// end.
func (c *consuming) run(ctx context.Context) error {
	defer stopwatch(&c.seconds)()
	c.ledger = newLedger(c.topic.Log)
	var now progress // of the running process
	reach := func(at uint64) { now.At = max(now.At, at) }
	ended := func() {
		c.done.Calls += now.Calls
		c.done.Conflicts += now.Conflicts
	}
	l := runner.Lives{Kills: c.kills, Silence: runner.MaxSilence}
	l.Next = func(k runner.Kill) runner.Work {
		ended()
		if c.tell != nil && l.Killed > 0 {
			c.tell(fmt.Sprintf("  killed with SIGKILL after %s of %s events, restarted", thousands(now.At), thousands(c.way)))
		}
		next := c.consumer
		next.Gate, now = k.Gate, progress{}
		return &next
	}
	l.Hear = map[string]runner.Hearing{
		"from": runner.Hears(func(from uint64) error {
			reach(from)
			if c.consumer.Kind == adapterOwn { // the handlers of the previous process are dead
				c.atRisk = less(from, c.returned)
			}
			return nil
		}),
		"at": runner.Hears(func(p progress) error {
			now.Calls, now.Conflicts = p.Calls, p.Conflicts
			reach(p.At)
			return nil
		}),
		"handling": runner.Hears(func(number uint64) error { return c.ledger.tell(number, true) }),
		"returned": func([]byte) error { c.returned++; return nil },
		"idle":     runner.Hears(func(i idling) error { c.idle = i; return nil }),
		"measured": runner.Hears(func(m measurement) error { c.measured = m; return nil }),
	}
	err := l.Run(ctx)
	ended()
	if c.killed = l.Killed; err != nil && ctx.Err() == nil {
		err = fmt.Errorf("consumer %q: at %d of %d: %w", c.consumer.Kind, now.At, c.way, err)
	}
	return err
}

// check compares the store of the consumer's processes with the topic. If they have no state, it
// compares their reports.
func (c *consuming) check(ctx context.Context) error {
	switch c.consumer.Kind {
	case adapterWork, offsetFirst:
		return c.checkState(ctx)
	case adapterOwn:
		c.ledger.mismatches = apart(c.topic.Distinct, c.returned+c.atRisk)
	}
	return nil
}

// checkState opens the store and compares all of it.
func (c *consuming) checkState(ctx context.Context) (err error) {
	l := c.ledger
	l.state = &expected{topic: c.topic.Topic.Name, group: c.consumer.Group}
	for _, end := range c.topic.Ends {
		l.state.ends = append(l.state.ends, uint64(end))
	}
	if c.consumer.Kind == offsetFirst {
		l.state.group = ""
	}
	if c.consumer.Workload.Handler == BalancesHandler {
		l.work = &c.consumer.Workload
	}
	e, err := c.consumer.openStore(nil)
	if err != nil {
		return err
	}
	err = l.check(ctx, e)
	if cerr := e.Engine.Close(); err == nil {
		err = cerr
	}
	return err
}
