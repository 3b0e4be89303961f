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
	e, err := o.openStore(nil)
	if err != nil {
		return err
	}
	j := newJudged()
	f, err := j.all(context.Background(), &feeding{
		source: o.Log.source, n: o.Log.N, batch: kafkaadapter.DefaultMaxBatch, callers: len(o.Ends), repeats: o.Log.Dup,
		progress: func(_ string, done, _ uint64) { say.line("at", progress{At: done}) },
	}, e)
	if err != nil {
		return err
	}
	say.line("measured", measurement{Seconds: f.took.Seconds(), Handled: j.claimed, Claims: j.claimed})
	return e.Close()
}
