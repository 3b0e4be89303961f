package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type reopenCmd struct {
	newStoreFlags
	N    int    `help:"Claims that are acknowledged before the kill." default:"1000000" placeholder:"N"`
	Seed uint64 `help:"Seed of the ids." default:"1"`
}

func (c *reopenCmd) Help() string {
	return "A process claims until so many claims were acknowledged, and is killed (SIGKILL). Its store is opened again: how long until " +
		"the first verdict, and where the filters came from. Then every acknowledged claim is looked up."
}

func (c *reopenCmd) Run(ctx context.Context, out *output) error {
	r, err := bench.Reopen(ctx, bench.ReopenOptions{N: c.N, Store: c.Store, Dir: string(c.Dir), Seed: c.Seed, Progress: out.show()})
	return report(out, r, err)
}
