package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type layersCmd struct {
	newStoreFlags
	brokersFlag
	N       int                 `help:"Distinct requests, events and rows, each." default:"50000" placeholder:"N"`
	Kills   int                 `help:"How often the process is killed." default:"5" placeholder:"K"`
	Control bench.LayersControl `help:"Break a rule, to see that it is noticed: forget-keys runs requests without their idempotency keys, forget-ids claims events by position, arrival-wins takes the change that came last, without-outbox publishes messages directly." enum:",forget-keys,forget-ids,arrival-wins,without-outbox" default:""`
	Seed    uint64              `help:"Seed of the events." default:"1"`
}

func (c *layersCmd) Help() string {
	return "Clients send HTTP requests with idempotency keys to a process, and some of them again. A quarter of the events that it consumes are repeats, " +
		"claimed for 24 hours, and so are changes of rows, of which the newest version wins. For each request and event the process sends a message " +
		"through its outbox, to a consumer that handles each once. The process is killed (SIGKILL) at random points and started again on its store. " +
		"Then every request, event, row and message is compared with what the clients were answered, what was sent, and what the consumer has handled."
}

func (c *layersCmd) Run(ctx context.Context, out *output) error {
	r, err := bench.Layers(ctx, bench.LayersOptions{
		Brokers: c.Brokers, N: c.N, Kills: c.Kills, Control: c.Control, Store: c.Store, Dir: string(c.Dir), Seed: c.Seed, Progress: out.show(),
	})
	return report(out, r, err)
}
