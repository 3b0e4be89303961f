package bench

import (
	"context"
	"fmt"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
)

// DemoOptions configure Demo.
type DemoOptions struct {
	Common
	Brokers []string `help:"${brokers}" type:"brokers" placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
	N       int      `help:"Records, repeats included." default:"1000000"`
	Kills   int      `help:"How often each consumer is killed." default:"5"`
	// Tell, if not nil, is called with a sentence for each step of the run.
	Tell func(sentence string) `kong:"-"`
}

const (
	demoRepeats    = 0.2
	demoPartitions = 4
	// a consumer that was killed handles this many records one by one, so that it finds a record
	// that kills it
	demoBatch = 512
)

// A DemoReport is the outcome of the events of a topic whose consumer was killed several times:
// with the adapter, and for comparison without it, with as many kills at the same points.
type DemoReport struct {
	DemoTable
	Kills   int     `json:"kills"`
	Seconds float64 `json:"seconds"`
	// MemorySet is the outcome of a consumer that adds each event to a set in its memory before it
	// handles the event, and AtLeastOnce that of one that handles all records. Both commit their
	// offsets after the handler.
	MemorySet   DemoTable `json:"in_memory_set"`
	AtLeastOnce DemoTable `json:"at_least_once"`
	Outcome
}

// A DemoTable shows the outcome of events.
type DemoTable struct {
	// Sent records are in the topic, repeats included; Distinct is the number of events among them.
	Sent     uint64 `json:"sent"`
	Distinct uint64 `json:"distinct"`
	// Handled counts the events that took effect: in the committed business state with the adapter,
	// in the state of the handler without it. Lost counts the events that did not take effect, and
	// HandledTwice those that took effect more than once.
	Handled      uint64 `json:"handled"`
	Lost         uint64 `json:"lost"`
	HandledTwice uint64 `json:"handled_twice"`
	// ConsumeSeconds is the time from the first start of the consumer until it had read all
	// records.
	ConsumeSeconds float64 `json:"consume_seconds"`
}

// Demo produces a million events with repeats and lets a process consume them that is killed
// several times meanwhile; then it checks every event: handled once, lost, or handled twice. Two
// consumers without the adapter do the same.
func Demo(ctx context.Context, o DemoOptions) (report DemoReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(traffic.UUIDv4, 1, 1)
	if err != nil {
		return report, err
	}
	log := &traffic.Log{Source: src, N: o.N, Dup: demoRepeats}
	err = o.withLog(ctx, o.Brokers, log, demoPartitions, func(dir string, topic *topics.Filled) error {
		where := "an embedded broker"
		if topic.Topic.Broker.Embedded == nil {
			where = "the brokers"
		}
		o.Tell(fmt.Sprintf("%s records of %s events are in a topic of %d partitions on %s (%.1f s).",
			thousands(uint64(o.N)), thousands(topic.Distinct), demoPartitions, where, topic.Took.Seconds()))
		run := demonstration{run: kafkaRun{KafkaOptions: KafkaOptions{Common: o.Common, N: o.N}, topic: topic, dir: dir}, tell: o.Tell}
		run.kills = runner.DrawKills(topic.Distinct, o.Kills, false)
		if err := run.all(ctx, &report); err != nil {
			return err
		}
		return report.broken()
	})
	return report, err
}

// broken returns the violations of the consumer through the adapter.
func (r *DemoReport) broken() error {
	if r.Lost+r.HandledTwice == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d lost, %d handled twice: %s", ErrNotHeld, r.Lost, r.HandledTwice, keepAndReport)
}

const maxDemoKills = 100

func (o *DemoOptions) complete() error {
	if o.Kills < 1 || o.Kills > maxDemoKills || o.N < 2*o.Kills*runner.LeastPerKill {
		return fmt.Errorf("%w: %d kills, %d records: give 1 to %d kills, and %d records for each", ErrUsage, o.Kills, o.N, maxDemoKills, 2*runner.LeastPerKill)
	}
	if o.Tell == nil {
		o.Tell = func(string) {}
	}
	return nil
}

// A demonstration is a run of Demo.
type demonstration struct {
	run   kafkaRun
	tell  func(sentence string)
	kills []runner.Kill // kills of a consumer that counts events
}

func (d *demonstration) all(ctx context.Context, report *DemoReport) error {
	for _, c := range []struct {
		kind  consumerKind
		tell  string
		table *DemoTable
	}{
		{adapterWork, "A consumer with Hapax: claim, work and offset commit together.", &report.DemoTable},
		{memorySet, "The same topic and the same kills with a set in the consumer's memory, which claims before the handler runs.", &report.MemorySet},
		{atLeastOnce, "And with a plain consumer that commits after the handler: at least once.", &report.AtLeastOnce},
	} {
		d.tell(c.tell)
		*c.table = DemoTable{Sent: uint64(d.run.N), Distinct: d.run.topic.Distinct}
		killed, err := d.consumer(ctx, c.kind, c.table)
		if c.kind == adapterWork {
			report.Kills = killed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// consumer runs one consumer to the end of the topic and counts its results.
func (d *demonstration) consumer(ctx context.Context, kind consumerKind, t *DemoTable) (killed int, err error) {
	c := d.run.newConsumer(kind, d.run.dir, kind.name())
	c.tell, c.consumer.Batch = d.tell, demoBatch
	for _, k := range d.kills { // the run of a consumer that counts repeats is longer
		slack := k.Gate.Wait - k.Gate.Here
		k.Gate.Here = k.Gate.Here * c.way / d.run.topic.Distinct
		k.Gate.Wait = min(k.Gate.Here+slack, c.way-1)
		c.kills = append(c.kills, k)
	}
	err = c.run(ctx)
	t.ConsumeSeconds = c.seconds
	if err != nil {
		return c.killed, err
	}
	err = c.check(ctx)
	if l := c.ledger; err == nil && l.mismatches > 0 {
		err = fmt.Errorf("%w: %d state mismatches (first %s): %s", ErrNotHeld, l.mismatches, l.first, keepAndReport)
	}
	t.Handled, t.HandledTwice = c.ledger.done()
	t.Lost = less(t.Distinct, t.Handled)
	return c.killed, err
}
