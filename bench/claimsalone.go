package bench

import (
	"context"

	"github.com/hapax-dev/hapax/kafkaadapter"
)

// claimAlone claims all events of the log, in their order, without a broker: this is the time of
// the engine alone. There are as many callers as the topic has partitions, each with batches of the
// adapter's maximum size, and every batch is durable. Events are generated while the clock is
// stopped.
func (o *consumeOrder) claimAlone(say *voice) error {
	o.Log.nameScopes()
	run := newClaiming(context.Background(), ClaimsOptions{
		N: o.Log.N, Dup: o.Log.Dup, Seed: o.Log.Seed, Batch: kafkaadapter.DefaultMaxBatch, Goroutines: len(o.Ends),
	}, o.Log.source, &ClaimsReport{})
	run.Progress = func(_ string, done, _ uint64) { say.line("at", progress{At: done}) }
	e, err := o.openStore(nil)
	if err != nil {
		return err
	}
	f, err := run.judgeAll(e)
	if err != nil {
		return err
	}
	say.line("measured", measurement{Seconds: f.took.Seconds(), Handled: run.report.Claimed, Claims: run.report.Claimed})
	return e.Close()
}
