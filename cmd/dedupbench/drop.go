package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type dropCmd struct {
	newStoreFlags
	N      int    `help:"Claims, spread evenly over weeks and scopes as they come." default:"1000000" placeholder:"N"`
	Weeks  int    `help:"Weeks, ending with the current one." default:"4" placeholder:"N"`
	Scopes int    `help:"Scopes. With many of them, each table holds several weeks." default:"1" placeholder:"N"`
	Seed   uint64 `help:"Seed of the ids." default:"1"`
}

func (c *dropCmd) Help() string {
	return "The store is filled, closed and opened again, and left until it writes nothing any more. Then its oldest week is dropped while two " +
		"goroutines claim new events one by one. What comes back is measured by the sizes of the files that hold claims."
}

func (c *dropCmd) Run(ctx context.Context, out *output) error {
	r, err := bench.Drop(ctx, bench.DropOptions{
		N: c.N, Weeks: c.Weeks, Scopes: c.Scopes, Store: c.Store, Dir: string(c.Dir), Seed: c.Seed, Progress: out.show(),
	})
	return report(out, r, err)
}
