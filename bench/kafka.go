package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// KafkaControl breaks a rule on purpose, so that one can see the books notice.
type KafkaControl string

// OffsetFirst puts a loop in the adapter's place that commits the offset of what it has polled, and
// then claims and works in one transaction: whatever a kill finds in between is lost.
const OffsetFirst KafkaControl = "offset-first"

// KafkaOptions configure Kafka.
type KafkaOptions struct {
	Common
	Brokers    []string     `help:"${brokers}" placeholder:"HOST:PORT,..." env:"DEDUPBENCH_BROKERS"`
	N          int          `help:"Records produced, repeats included, of 200 bytes each." default:"1000000" placeholder:"N"`
	Dup        float64      `help:"Share of the records that repeat an earlier event, from 0 to below 1: half of them one of the last 10,000, half any of all history; one in four on another key." default:"0.2" placeholder:"SHARE"`
	Partitions int          `help:"Partitions of the topic." default:"8" placeholder:"N"`
	Mode       Mode         `help:"own: claim and offset commit before the handler runs. work: with it." enum:"own,work" default:"work"`
	Workload   Workload     `embed:""`
	Kills      int          `help:"How often the consumer is killed. 0: it is not, and rates are taken." default:"0" placeholder:"N"`
	Control    KafkaControl `help:"Break a rule, to see that it is noticed: offset-first commits the offset before the batch (with --kills, mode work)." enum:",offset-first" default:""`
	Seed       uint64       `help:"Seed of the events." default:"1"`
}

const maxPartitions = 1000

// A KafkaReport says the outcome of the events of a topic.
type KafkaReport struct {
	// Produced records were sent, repeats included; Distinct is the number of events among them.
	Produced uint64 `json:"produced"`
	Distinct uint64 `json:"distinct"`
	// Handled events took effect: in mode work, those whose counter in the business state, as it
	// was committed, is at least 1; in mode own, those that the handler has written to a file as it
	// started.
	Handled uint64 `json:"handled"`
	// Lost is Distinct less Handled, once the topic was read to its end.
	Lost uint64 `json:"lost"`
	// AtRisk counts the events that were claimed and whose handler had not returned at a kill, as
	// the store and the handlers' file told after it: the most that mode own may lose. Always 0 in
	// mode work.
	AtRisk uint64 `json:"at_risk"`
	// HandledTwice counts the events that took effect more than once.
	HandledTwice uint64 `json:"handled_twice"`
	// StateMismatch counts disagreements: in mode work, of claims, counters, sums of partitions and
	// offsets, looked at event by event; in mode own, by how much the number of events differs from
	// those whose handler has returned, and AtRisk.
	StateMismatch uint64 `json:"state_mismatch"`
	// BalancesWrong accounts do not have the balance that the events add up to, each moved once.
	BalancesWrong uint64 `json:"balances_wrong"`
	Kills         int    `json:"kills"`

	// HandlerCalls and Conflicts are of the round of the rates below in which the handler was
	// called most. With kills they are of all lives of the consumer, without the last milliseconds
	// before each kill. Conflicts are batches, and other transactions of the adapter, that lost
	// against another transaction and ran again.
	HandlerCalls uint64 `json:"handler_calls"`
	Conflicts    uint64 `json:"conflicts"`

	// Rates, null with kills: the medians of three rounds. In a round the three are taken one after
	// the other, each of a process of its own with a store of its own, over the same topic, with
	// the client's defaults, from the first fetched record to the last one. RecordsPerS is of the
	// adapter with the handler of the workload and with telemetry, whose tracer records nothing,
	// until the store has the last offset; RawRecordsPerS of a plain loop that only polls;
	// ClaimsPerS of the engine alone on the same events, in durable batches of the adapter's size,
	// by a caller for each partition. Ratio is RecordsPerS over RawRecordsPerS. The counts of
	// events above are of one more consumer, which counts each event in its store as well.
	RecordsPerS    *float64 `json:"records_per_s"`
	RawRecordsPerS *float64 `json:"raw_records_per_s"`
	ClaimsPerS     *float64 `json:"claims_per_s"`
	Ratio          *float64 `json:"ratio"`
	// PartitionSpread is how many times as far the first partition is as the last one when half of
	// all records are done: the largest of the rounds.
	PartitionSpread *float64 `json:"partition_spread"`
	// BesideSlow is the rate of a partition beside one with a slow handler, as a share of its rate
	// beside others like itself; null unless Workload.Slow is set.
	BesideSlow *float64 `json:"beside_slow"`

	ProduceSeconds float64 `json:"produce_seconds"`
	ConsumeSeconds float64 `json:"consume_seconds"`
	Seconds        float64 `json:"seconds"`
	Outcome

	firstWrong string
}

// Kafka produces events with repeats and has them consumed through the adapter, by a process that
// may be killed on the way, and looks at the outcome of every event.
func Kafka(ctx context.Context, o KafkaOptions) (report KafkaReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(o.Seed, UUIDv4, 1, 1)
	if err != nil {
		return report, err
	}
	log := &topicLog{source: src, N: o.N, Dup: o.Dup, Accounts: o.Workload.Accounts}
	err = o.withLog(ctx, o.Brokers, log, o.Partitions, func(dir string, p *produced) error {
		report.Produced, report.Distinct, report.ProduceSeconds = uint64(o.N), p.distinct, p.took.Seconds()
		run := kafkaRun{KafkaOptions: o, produced: p, dir: dir, report: &report}
		if err := run.all(ctx); err != nil {
			return err
		}
		return report.broken(&o)
	})
	return report, err
}

func (o *KafkaOptions) complete() error {
	setDefaults(o)
	switch {
	case o.N < 1 || o.Partitions < 1 || o.Partitions > maxPartitions || o.Kills < 0:
		return fmt.Errorf("%w: %d records on %d partitions, %d kills: give numbers from 1, and up to %d partitions", ErrUsage, o.N, o.Partitions, o.Kills, maxPartitions)
	case !(o.Dup >= 0 && o.Dup < 1):
		return fmt.Errorf("%w: a share of repeats of %v: give one from 0 to below 1", ErrUsage, o.Dup)
	case o.Control != "" && (o.Mode != Work || o.Kills == 0):
		return fmt.Errorf("%w: control %s is for mode %s, with kills", ErrUsage, o.Control, Work)
	case float64(o.N)*(1-o.Dup) < float64(o.Kills*leastPerKill):
		return fmt.Errorf("%w: %d records for %d kills: give %d new events for each kill", ErrUsage, o.N, o.Kills, leastPerKill)
	case o.Workload.Slow > 0 && (o.Partitions < 2 || o.Kills > 0):
		return fmt.Errorf("%w: a slow handler is compared with others: give 2 partitions or more, and no kills", ErrUsage)
	}
	return o.Workload.complete(o.Mode == Work)
}

// broken says what does not hold. Mode own may lose what was at risk.
func (r *KafkaReport) broken(o *KafkaOptions) error {
	if r.Lost <= r.AtRisk && r.HandledTwice+r.StateMismatch+r.BalancesWrong == 0 {
		return nil
	}
	again := "run again with --dir to keep the store, and report it"
	if o.Control != "" {
		again = "the control " + string(o.Control) + " breaks the rule on purpose"
	}
	first := ""
	if r.firstWrong != "" {
		first = " (first " + r.firstWrong + ")"
	}
	return fmt.Errorf("%w: %d lost, %d of them at risk, %d handled twice, %d state mismatches, %d balances wrong%s: %s",
		ErrNotHeld, r.Lost, r.AtRisk, r.HandledTwice, r.StateMismatch, r.BalancesWrong, first, again)
}

// kafkaRun is a run of Kafka.
type kafkaRun struct {
	KafkaOptions
	*produced
	dir    string
	report *KafkaReport
}

// all takes the rates if nothing is to be killed, and then consumes for the books.
func (k *kafkaRun) all(ctx context.Context) error {
	if k.Kills == 0 {
		if err := k.rates(ctx); err != nil {
			return err
		}
	}
	if k.Mode == Own {
		return k.own(ctx)
	}
	return k.work(ctx)
}

// order is that of a consumer of the run's topic.
func (k *kafkaRun) order(kind consumerKind) consumeOrder {
	return k.orderIn(filepath.Join(k.dir, "store"), kind.name(), kind)
}

func (k *kafkaRun) orderIn(dir, group string, kind consumerKind) consumeOrder {
	work := k.Workload
	work.Slow = 0
	return consumeOrder{
		Kind: kind, Workload: work, Seeds: k.broker.seeds, Topic: k.Name, Group: k.group(group), Ends: k.ends, Limit: k.log.limit(),
		Store: k.Store, Dir: dir, Weeks: k.log.options().RetentionWeeks,
	}
}

// consume runs a consumer to the end of the topic, with the run's kills.
func (k *kafkaRun) consume(ctx context.Context, c *consuming) error {
	start := time.Now()
	c.stage, c.progress = "consume", k.Progress
	err := c.run(ctx)
	r := k.report
	r.Kills, r.ConsumeSeconds = c.killed, time.Since(start).Seconds()
	if k.Kills > 0 {
		r.HandlerCalls, r.Conflicts = c.effort.Calls, c.effort.Conflicts
	}
	return err
}

// work runs a consumer whose claims, state and offsets are to commit together, and reads its store.
func (k *kafkaRun) work(ctx context.Context) error {
	c := consuming{order: k.order(adapterWork), way: k.distinct}
	if k.Control == OffsetFirst {
		c = consuming{order: k.order(offsetFirst), way: uint64(k.N)}
	}
	c.kills = drawKills(c.way, k.Kills, k.Control == "")
	if k.Control == OffsetFirst { // each kill comes between the offset's commit and the batch's
		for i := range c.kills {
			c.kills[i].Wait = c.kills[i].Here - 1
		}
	}
	if err := k.consume(ctx, &c); err != nil {
		return err
	}
	check, err := checkState(ctx, &c.order, k.produced, k.Progress)
	if err != nil {
		return err
	}
	r := k.report
	r.Handled, r.HandledTwice = check.handled()
	r.StateMismatch, r.BalancesWrong, r.firstWrong = check.Mismatches, check.balancesWrong, check.First
	r.Lost = less(r.Distinct, r.Handled)
	return nil
}

// own runs a consumer whose claims commit before its handlers run, and reads what the handlers
// wrote.
func (k *kafkaRun) own(ctx context.Context) error {
	c := consuming{order: k.order(adapterOwn), way: k.distinct, kills: drawKills(k.distinct, k.Kills, true)}
	c.order.Effects = filepath.Join(k.dir, "handled")
	c.order.Returned = filepath.Join(k.dir, "returned")
	r := k.report
	c.began = func(claims uint64) error { // the handlers of the life before are dead
		returned, err := fileSize(c.order.Returned)
		r.AtRisk = less(claims, returned)
		return err
	}
	err := k.consume(ctx, &c)
	if err != nil {
		return err
	}
	handled, err := readEffects(c.order.Effects, k.log)
	if err != nil {
		return err
	}
	returned, err := fileSize(c.order.Returned)
	if err != nil {
		return err
	}
	r.Handled, r.HandledTwice = handled.handled()
	r.Lost = less(r.Distinct, r.Handled)
	r.StateMismatch = apart(r.Distinct, returned+r.AtRisk)
	return nil
}

// fileSize is 0 for a file that is not there.
func fileSize(path string) (uint64, error) {
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return uint64(info.Size()), nil
}
