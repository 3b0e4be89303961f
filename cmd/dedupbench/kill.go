package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type killCmd struct {
	newStoreFlags
	Kills int            `help:"How often the process is killed." default:"20" placeholder:"N"`
	Mode  bench.KillMode `help:"own: each claim commits by itself. work: it commits with a counter and the offset." enum:"own,work" default:"own"`
	Seed  uint64         `help:"Seed of the log." default:"1"`
}

func (c *killCmd) Help() string {
	return "A process claims and says what it was told; it is killed (SIGKILL) at random points, also while it opens the store, and started " +
		"again on the same directory, where it sends again what was not acknowledged, and more. The parent keeps the books: what was " +
		"acknowledged and is absent is lost; what was told claimed twice is claimed twice."
}

func (c *killCmd) Run(ctx context.Context, out *output) error {
	r, err := bench.Kill(ctx, bench.KillOptions{
		Kills: c.Kills, Store: c.Store, Mode: c.Mode, Dir: string(c.Dir), Seed: c.Seed, Progress: out.show(),
	})
	return report(out, r, err)
}
