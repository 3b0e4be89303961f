package main

import (
	"context"
	"time"

	"github.com/hapax-dev/hapax/bench"
)

type kafkaCmd struct {
	newStoreFlags
	brokersFlag
	N          int                `help:"Records produced, repeats included, of 200 bytes each." default:"1000000" placeholder:"N"`
	Dup        float64            `help:"Share of the records that repeat an earlier event, from 0 to below 1: half of them one of the last 10,000, half any of all history; one in four on another key." default:"0.2" placeholder:"SHARE"`
	Partitions int                `help:"Partitions of the topic." default:"8" placeholder:"N"`
	Mode       bench.KafkaMode    `help:"own: claim and offset commit before the handler runs. work: with it." enum:"own,work" default:"work"`
	Handler    bench.Handler      `help:"noop: nothing. decode: decodes the JSON of the record. balances: decodes it, and moves money between two accounts in the transaction." enum:"noop,decode,balances" default:"noop"`
	Accounts   int                `help:"Accounts of the handler balances." default:"50" placeholder:"N"`
	Own        bool               `name:"accounts-per-partition" help:"As many accounts for each partition alone."`
	Add        bool               `help:"Move by Tx.Add, which commutes, instead of reading and writing the balances."`
	Slow       time.Duration      `help:"Measure as well how fast the other partitions are while the handler of partition 0 takes so long for each event." placeholder:"DURATION"`
	Kills      int                `help:"How often the consumer is killed. 0: it is not, and rates are taken." default:"0" placeholder:"N"`
	Control    bench.KafkaControl `help:"Break a rule, to see that it is noticed: offset-first commits the offset before the batch (with --kills, mode work)." enum:",offset-first" default:""`
	Seed       uint64             `help:"Seed of the events." default:"1"`
}

func (c *kafkaCmd) Help() string {
	return "A topic of its own is filled and consumed by a process through the adapter. With --kills the process is killed (SIGKILL) at random " +
		"points of its way and started again; then every event is looked at: lost, or handled twice. Without, a plain loop that " +
		"polls the same topic and the engine alone on the same events are measured beside it. The consumer has metrics, and a tracer that records nothing."
}

func (c *kafkaCmd) Run(ctx context.Context, out *output) error {
	r, err := bench.Kafka(ctx, bench.KafkaOptions{
		Brokers: c.Brokers, N: c.N, Dup: c.Dup, Partitions: c.Partitions, Mode: c.Mode, Kills: c.Kills,
		Workload: bench.Workload{Handler: c.Handler, Accounts: c.Accounts, PerPartition: c.Own, Add: c.Add, Slow: c.Slow},
		Control:  c.Control,
		Store:    c.Store, Dir: string(c.Dir), Seed: c.Seed, Progress: out.show(),
	})
	return report(out, r, err)
}
