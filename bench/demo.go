package bench

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"github.com/hapax-dev/hapax/engine"
)

//go:embed data/openstack_changes.csv.gz
var recordedLog []byte

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
	// a killed consumer continues record by record for as many, so that a record that kills it is
	// found
	demoBatch = 512
	// retention: the recorded log begins in 2010
	demoWeeks = 30 * 52
)

// A DemoReport is the outcome of the events of a topic whose consumer was killed meanwhile: through
// the adapter, and for comparison without it, killed as often at the same points.
type DemoReport struct {
	DemoTable
	Kills   int     `json:"kills"`
	Seconds float64 `json:"seconds"`
	// MemorySet claims in a set in the consumer's memory before it handles. AtLeastOnce handles all
	// records. Both commit their offsets after the handler.
	MemorySet   DemoTable `json:"in_memory_set"`
	AtLeastOnce DemoTable `json:"at_least_once"`
	Outcome
}

// A DemoTable shows the outcome of events.
type DemoTable struct {
	// Sent records are in the topic, repeats included; Distinct is the number of events among them.
	Sent     uint64 `json:"sent"`
	Distinct uint64 `json:"distinct"`
	// Handled events took effect: through the adapter, in the committed business state; otherwise
	// in the handler's. Lost ones did not; those handled twice took effect more than once.
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
	src, err := newSource(1, UUIDv4, 1, 1)
	if err != nil {
		return report, err
	}
	recorded, err := readRecordedLog()
	if err != nil {
		return report, fmt.Errorf("reading the bundled log: %w", err)
	}
	log := &topicLog{source: src, N: o.N, Dup: demoRepeats, recorded: recorded}
	err = o.withLog(ctx, o.Brokers, log, demoPartitions, func(dir string, p *produced) error {
		o.tellProduced(p)
		run := demonstration{kafkaRun{KafkaOptions: KafkaOptions{Common: o.Common, N: o.N}, produced: p, dir: dir}, o, nil}
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
	if o.Kills < 1 || o.Kills > maxDemoKills || o.N < 2*o.Kills*leastPerKill {
		return fmt.Errorf("%w: %d kills, %d records: give 1 to %d kills, and %d records for each", ErrUsage, o.Kills, o.N, maxDemoKills, 2*leastPerKill)
	}
	if o.Tell == nil {
		o.Tell = func(string) {}
	}
	return nil
}

func (o *DemoOptions) tellProduced(p *produced) {
	where := "an embedded broker"
	if p.broker.embedded == nil {
		where = "the brokers"
	}
	o.Tell(fmt.Sprintf("%s records of %s events are in a topic of %d partitions on %s (%.1f s): %s events of a real log, the others generated.",
		thousands(uint64(o.N)), thousands(p.distinct), demoPartitions, where, p.took.Seconds(), thousands(p.log.recordedAmong(p.distinct))))
}

// readRecordedLog returns the events of the bundled log, the first of each id.
func readRecordedLog() ([]engine.Event, error) {
	log, err := newLogReader(bytes.NewReader(recordedLog))
	if err != nil {
		return nil, err
	}
	var events []engine.Event
	ids := make(map[string]bool)
	for {
		r, err := log.next()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		if !ids[r.ID] {
			ids[r.ID] = true
			events = append(events, engine.Event{Scope: DefaultScope, ID: []byte(r.ID), Time: r.Time})
		}
	}
}

// A demonstration is a run of Demo.
type demonstration struct {
	kafkaRun
	o     DemoOptions
	kills []kill // of a consumer that counts events
}

func (d *demonstration) all(ctx context.Context, report *DemoReport) error {
	d.kills = drawKills(d.distinct, d.o.Kills, false)
	for _, c := range []struct {
		kind  consumerKind
		tell  string
		table *DemoTable
	}{
		{adapterWork, "A consumer with Hapax: claim, work and offset commit together.", &report.DemoTable},
		{memorySet, "The same topic and the same kills with a set in the consumer's memory, which claims before the handler runs.", &report.MemorySet},
		{atLeastOnce, "And with a plain consumer that commits after the handler: at least once.", &report.AtLeastOnce},
	} {
		d.o.Tell(c.tell)
		*c.table = DemoTable{Sent: uint64(d.N), Distinct: d.distinct}
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
	c := d.newConsumer(kind, d.dir, kind.name())
	c.tell, c.order.Weeks, c.order.Batch = d.o.Tell, demoWeeks, demoBatch
	for _, k := range d.kills { // the run is longer for a consumer that counts repeats
		slack := k.Wait - k.Here
		k.Here = k.Here * c.way / d.distinct
		k.Wait = min(k.Here+slack, c.way-1)
		c.kills = append(c.kills, k)
	}
	err = c.run(ctx)
	t.ConsumeSeconds = c.seconds
	if err != nil {
		return c.killed, err
	}
	o, err := c.count(ctx)
	if err == nil && o.mismatches > 0 {
		err = fmt.Errorf("%w: %d state mismatches (first %s): %s", ErrNotHeld, o.mismatches, o.first, keepAndReport)
	}
	t.Handled, t.HandledTwice, t.Lost = o.handled, o.twice, less(t.Distinct, o.handled)
	return c.killed, err
}
