package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/topics"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
)

// KafkaOptions configure Kafka.
type KafkaOptions struct {
	Common
	Brokers    []string      `help:"${brokers}" type:"brokers" placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
	N          int           `help:"Records produced, repeats included, of 200 bytes each." default:"1000000"`
	Dup        float64       `help:"Share of the records that repeat an earlier event, from 0 to below 1: half of them one of the last 10,000, half any of all history; one in four on another key." default:"0.2"`
	Partitions int           `help:"Partitions of the topic." default:"8"`
	Mode       Mode          `help:"own: claim and offset commit before the handler runs (AtMostOnce). work: with it (Transactional)." enum:"own,work" default:"work"`
	Workload   Workload      `embed:""`
	SlowSync   time.Duration `help:"Measure as well how fast the consumer is when each sync of its store takes so much longer, as on a slow disk (pebble only, no kills)." placeholder:"DURATION"`
	Kills      int           `help:"How often the consumer is killed. 0 measures rates instead." default:"0"`
	Idle       time.Duration `help:"How long the consumer is measured after the last record, for its idle processor time (no kills)." default:"10s"`

	fault fault
}

const maxPartitions = 20000

// A KafkaReport says the outcome of the events of a topic.
type KafkaReport struct {
	// Produced is the number of records that were sent, repeats included. Distinct is the number of
	// events among them.
	Produced uint64 `json:"produced"`
	Distinct uint64 `json:"distinct"`
	// Handled counts the events that took effect: in mode work, those whose counter in the
	// committed business state is at least 1; in mode own, those whose handler has reported its
	// start.
	Handled uint64 `json:"handled"`
	// Lost is Distinct less Handled, once the topic was read to its end.
	Lost uint64 `json:"lost"`
	// AtRisk counts the events that were claimed and whose handlers had not returned at a kill,
	// according to the store and the handlers. Mode own may lose at most these. Always 0 in mode
	// work.
	AtRisk uint64 `json:"at_risk"`
	// HandledTwice counts the events that took effect more than once.
	HandledTwice uint64 `json:"handled_twice"`
	// StateMismatch counts disagreements: in mode work, of claims, counters and
	// offsets, checked event by event; in mode own, the difference between the number of events and
	// those whose handler has returned, and AtRisk.
	StateMismatch uint64 `json:"state_mismatch"`
	// BalancesWrong counts the accounts whose balance is not the sum of the events, each applied
	// once.
	BalancesWrong uint64 `json:"balances_wrong"`
	Kills         int    `json:"kills"`

	// HandlerCalls and Conflicts come from the round with the most handler calls. With kills, they
	// include all processes of the consumer, without the last milliseconds before each kill.
	// Conflicts counts the batches, and other transactions of the adapter, that conflicted with
	// another transaction and ran again.
	HandlerCalls uint64 `json:"handler_calls"`
	Conflicts    uint64 `json:"conflicts"`

	// Rates are the medians of three rounds, and null with kills. A round measures the three rates
	// one after the other, each in a separate process with a separate store, over the same topic,
	// with the client's defaults, from the first fetched record to the last one. RecordsPerS is the
	// rate of the adapter with the handler of the workload and with telemetry, whose tracer records
	// nothing, until the store has the last offset. RawRecordsPerS is the rate of a plain loop that
	// only polls. ClaimsPerS is the rate of the engine alone on the same events, in durable batches
	// of the adapter's size, with one caller for each partition. Ratio is RecordsPerS divided by
	// RawRecordsPerS. The counts of events above come from an additional consumer, which also
	// counts each event in its store.
	RecordsPerS    *float64 `json:"records_per_s"`
	RawRecordsPerS *float64 `json:"raw_records_per_s"`
	ClaimsPerS     *float64 `json:"claims_per_s"`
	Ratio          *float64 `json:"ratio"`
	// CPUPerRecord is the processor time of the adapter's process for each record, user and system,
	// in microseconds: the median of the rounds of RecordsPerS. Null with kills, and where it is
	// unknown.
	CPUPerRecord *float64 `json:"cpu_us_per_record"`
	// PartitionSpread is the progress of the fastest partition divided by that of the slowest, when
	// half of all records are done: the maximum of the rounds.
	PartitionSpread *float64 `json:"partition_spread"`
	// BesideSlow is the rate of the partitions beside one with a slow handler, as a share of their
	// rate without it; null unless Workload.Slow is set.
	BesideSlow *float64 `json:"beside_slow"`
	// WithSlowSync is the rate of the adapter with slow syncs of its store, as a share of
	// RecordsPerS; null unless KafkaOptions.SlowSync is set.
	WithSlowSync *float64 `json:"with_slow_sync"`

	// AllRunningS is the time from Run of the consumer that counts the events until its last
	// partition handles records or waits for them, in seconds. StopsFalse counts the partitions that
	// it has stopped meanwhile, although the brokers are well. IdleCPUPercent is the processor time
	// of its process without records, in percent of one core. Null with kills.
	AllRunningS    *float64 `json:"all_running_s"`
	StopsFalse     *uint64  `json:"stops_false"`
	IdleCPUPercent *float64 `json:"idle_cpu_percent"`

	ProduceSeconds float64 `json:"produce_seconds"`
	ConsumeSeconds float64 `json:"consume_seconds"`
	Seconds        float64 `json:"seconds"`
	Outcome

	firstWrong string
}

// Kafka produces events with repeats, lets a process consume them through the adapter, which may be
// killed meanwhile, and checks the outcome of every event.
func Kafka(ctx context.Context, o KafkaOptions) (report KafkaReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(traffic.UUIDv4, 1, 1)
	if err != nil {
		return report, err
	}
	log := &traffic.Log{Source: src, N: o.N, Dup: o.Dup, Accounts: o.Workload.Accounts}
	err = o.withLog(ctx, o.Brokers, log, o.Partitions, func(dir string, topic *topics.Filled) error {
		report.Produced, report.Distinct, report.ProduceSeconds = uint64(o.N), topic.Distinct, topic.Took.Seconds()
		run := kafkaRun{KafkaOptions: o, topic: topic, dir: dir, report: &report}
		if err := run.all(ctx); err != nil {
			return err
		}
		return report.broken()
	})
	return report, err
}

// withLog fills a topic with the log, on brokers or on one inside this process, and calls do with it
// and the directory of the run's stores. Then it removes the temporary data.
func (c *Common) withLog(ctx context.Context, seeds []string, log *traffic.Log, parts int, do func(dir string, topic *topics.Filled) error) error {
	return withBroker(ctx, seeds, c.Dir, func(dir string, b *topics.Broker) (err error) {
		topic, err := b.Fill(ctx, log, parts, nil)
		if err != nil {
			return err
		}
		defer topic.Topic.Remove(&err)
		return do(dir, topic)
	})
}

// withBroker makes the directory of the run's stores, connects to brokers, and calls do with both.
func withBroker(ctx context.Context, seeds []string, dir string, do func(dir string, b *topics.Broker) error) error {
	return inPlace(dir, func(dir string) error {
		b, err := topics.Open(ctx, seeds)
		if errors.Is(err, topics.ErrAddress) {
			err = fmt.Errorf("%w: %w", ErrUsage, err)
		}
		if err != nil {
			return err
		}
		defer b.Close()
		return do(dir, b)
	})
}

func (o *KafkaOptions) complete() error {
	switch {
	case o.N < 1 || o.Partitions < 1 || o.Partitions > maxPartitions || o.Kills < 0:
		return fmt.Errorf("%w: %d records on %d partitions, %d kills: give numbers from 1, and up to %d partitions", ErrUsage, o.N, o.Partitions, o.Kills, maxPartitions)
	case !(o.Dup >= 0 && o.Dup < 1):
		return fmt.Errorf("%w: a share of repeats of %v: give one from 0 to below 1", ErrUsage, o.Dup)
	case float64(o.N)*(1-o.Dup) < float64(o.Kills)*runner.LeastPerKill:
		return fmt.Errorf("%w: %d records for %d kills: give %d new events for each kill", ErrUsage, o.N, o.Kills, runner.LeastPerKill)
	case o.SlowSync < 0 || o.SlowSync > 0 && (o.Kills > 0 || o.Store == Bolt):
		return fmt.Errorf("%w: syncs that take %v longer: give a duration from 0, store %s, and no kills", ErrUsage, o.SlowSync, Pebble)
	case o.Workload.Slow > 0 && (o.Partitions < 2 || o.Kills > 0):
		return fmt.Errorf("%w: a slow handler is compared with others: give 2 partitions or more, and no kills", ErrUsage)
	}
	return o.Workload.complete(o.Mode == Work)
}

// broken returns the violations. Mode own may lose the events at risk.
func (r *KafkaReport) broken() error {
	if r.Lost <= r.AtRisk && r.HandledTwice+r.StateMismatch+r.BalancesWrong == 0 {
		return nil
	}
	first := ""
	if r.firstWrong != "" {
		first = " (first " + r.firstWrong + ")"
	}
	return fmt.Errorf("%w: %d lost, %d of them at risk, %d handled twice, %d state mismatches, %d balances wrong%s: %s",
		ErrNotHeld, r.Lost, r.AtRisk, r.HandledTwice, r.StateMismatch, r.BalancesWrong, first, keepAndReport)
}

// kafkaRun is a run of Kafka.
type kafkaRun struct {
	KafkaOptions
	topic  *topics.Filled
	dir    string
	report *KafkaReport
}

// all measures the rates if no process is to be killed, and then consumes for the counts.
func (k *kafkaRun) all(ctx context.Context) error {
	if k.Kills == 0 {
		if err := k.rates(ctx); err != nil {
			return err
		}
	}
	return k.consume(ctx)
}

// newConsumer returns a consumer of the run's topic with its files in dir.
func (k *kafkaRun) newConsumer(kind consumerKind, dir, group string) *consuming {
	work := k.Workload
	work.Slow = 0
	c := &consuming{topic: k.topic, way: uint64(k.N), consumer: consumer{
		Kind: kind, Workload: work, Seeds: k.topic.Topic.Broker.Seeds, Topic: k.topic.Topic.Name, Group: k.topic.Topic.Group(group), Ends: k.topic.Ends,
		Limit: k.topic.Log.Limit(), Store: k.Store, Dir: filepath.Join(dir, "store"), Weeks: k.topic.Log.Source.Options().RetentionWeeks,
	}}
	switch kind {
	case adapterOwn, adapterWork:
		c.way = k.topic.Distinct
	case engineAlone:
		c.consumer.Log = *k.topic.Log
	}
	return c
}

// consume runs a consumer to the end of the topic, with the run's kills, and checks every event.
func (k *kafkaRun) consume(ctx context.Context) error {
	kind := consumerKind(k.Mode)
	if k.fault == commitFirst {
		kind = offsetFirst
	}
	c := k.newConsumer(kind, k.dir, kind.name())
	if k.Kills == 0 {
		c.consumer.Idle = k.Idle
	}
	c.kills = runner.DrawKills(c.way, k.Kills, k.fault == "")
	if k.fault == commitFirst { // each kill comes between the commits of the offset and of the batch
		for i := range c.kills {
			c.kills[i].Gate.Wait = c.kills[i].Gate.Here - 1
		}
	}
	return k.follow(ctx, c)
}

// follow runs the consumer to its end and checks every event.
func (k *kafkaRun) follow(ctx context.Context, c *consuming) error {
	err := c.run(ctx)
	r := k.report
	r.Kills, r.ConsumeSeconds, r.AtRisk = c.killed, c.seconds, c.atRisk
	if k.Kills > 0 {
		r.HandlerCalls, r.Conflicts = c.done.Calls, c.done.Conflicts
	}
	if err != nil {
		return err
	}
	if i := c.idle; k.Kills == 0 {
		r.AllRunningS, r.StopsFalse, r.IdleCPUPercent = &i.AllRunning, &i.Stops, &i.CPU
	}
	err = c.check(ctx)
	l := c.ledger
	r.Handled, r.HandledTwice = l.done()
	r.Lost, r.StateMismatch, r.BalancesWrong, r.firstWrong = less(r.Distinct, r.Handled), l.mismatches, l.balancesWrong, l.first
	return err
}

// rateRounds is how often each rate of Kafka is measured.
const rateRounds = 3

// rates measures the rates: the median of each over the rounds.
func (k *kafkaRun) rates(ctx context.Context) error {
	r, all, others, distinct := k.report, sum(k.topic.Ends), sum(k.topic.Ends[1:]), k.topic.Distinct
	kind := consumerKind(k.Mode)
	once := func(c *consuming) error {
		if m := &c.measured; m.Handled != distinct || m.Claims != distinct {
			return fmt.Errorf("%w: of %d distinct events %d were handled and %d are claimed: report it with the command line", ErrNotHeld, distinct, m.Handled, m.Claims)
		}
		return nil
	}
	raw := k.rate(ctx, all, k.measured(rawLoop, ""), func(c *consuming) error {
		if c.measured.Handled != all {
			return fmt.Errorf("a plain loop has read %d of %d records: give brokers that keep them all", c.measured.Handled, all)
		}
		return nil
	})
	claims := k.rate(ctx, all, k.measured(engineAlone, ""), once)
	var cpu []float64
	ours := k.rate(ctx, all, k.measured(kind, ""), func(c *consuming) error {
		cpu = append(cpu, c.measured.CPUSeconds/float64(all)*1e6)
		if c.done.Calls >= r.HandlerCalls {
			r.HandlerCalls, r.Conflicts = c.done.Calls, c.done.Conflicts
		}
		if s := c.measured.Spread; s > 0 && (r.PartitionSpread == nil || s > *r.PartitionSpread) {
			r.PartitionSpread = &s
		}
		return once(c)
	})
	beside := k.rate(ctx, others, func(dir string) *consuming { // until all partitions but the slow one are at their ends
		c := k.measured(kind, "-slow")(dir)
		c.consumer.Workload.Slow = k.Workload.Slow
		return c
	}, func(*consuming) error { return nil })
	slowSync := k.rate(ctx, all, func(dir string) *consuming {
		c := k.measured(kind, "-slow-sync")(dir)
		c.consumer.SlowSync = k.SlowSync
		return c
	}, once)
	timings := []*timing{raw, claims, ours}
	if k.Workload.Slow > 0 {
		timings = append(timings, beside)
	}
	if k.SlowSync > 0 {
		timings = append(timings, slowSync)
	}
	if err := inRounds(rateRounds, k.dir, timings...); err != nil {
		return err
	}
	r.RecordsPerS, r.RawRecordsPerS, r.ClaimsPerS = ours.median(), raw.median(), claims.median()
	r.Ratio = over(r.RecordsPerS, r.RawRecordsPerS)
	if each := median(cpu); *each > 0 {
		r.CPUPerRecord = each
	}
	if k.Workload.Slow > 0 {
		without := *r.RecordsPerS * float64(others) / float64(all)
		r.BesideSlow = over(beside.median(), &without)
	}
	if k.SlowSync > 0 {
		r.WithSlowSync = over(slowSync.median(), r.RecordsPerS)
	}
	return nil
}

// rate returns the rate of a consumer over some records, if its outcome was right.
func (k *kafkaRun) rate(ctx context.Context, records uint64, newConsumer func(dir string) *consuming, right func(c *consuming) error) *timing {
	return &timing{take: func(dir string) (float64, error) {
		c := newConsumer(dir)
		err := c.run(ctx)
		if err == nil {
			err = right(c)
		}
		return float64(records) / c.measured.Seconds, err
	}}
}

// measured returns a func that makes a measured consumer, in a separate group.
func (k *kafkaRun) measured(kind consumerKind, suffix string) func(dir string) *consuming {
	return func(dir string) *consuming {
		c := k.newConsumer(kind, dir, kind.name()+"-"+filepath.Base(dir)+suffix)
		c.way, c.consumer.Measure = uint64(k.N), true
		return c
	}
}
