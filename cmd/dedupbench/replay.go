package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type replayCmd struct {
	storeFlag
	File        string   `arg:"" help:"Log with a header line and columns id and time (RFC 3339), plain or gzip'd."`
	Dir         dirFlag  `help:"Directory of the store; kept, and used again by the next run. Without it: a temporary one."`
	Scope       nameFlag `help:"Consumer that the claims are made for." default:"bench"`
	KeepWeeks   int      `help:"Weeks before the current one that are kept, 0 for all. Events of older weeks are too_old." default:"4" placeholder:"N"`
	Batch       int      `help:"Events judged by one call." default:"1000" placeholder:"N"`
	SmallTables bool     `help:"Make tables so small that 50,000 claims fill at least twenty, for damage tests (pebble only)."`
}

func (c *replayCmd) Run(ctx context.Context, out *output) error {
	r, err := bench.Replay(ctx, bench.ReplayOptions{
		Log: c.File, Store: c.Store, Dir: string(c.Dir), Scope: string(c.Scope),
		KeepWeeks: c.KeepWeeks, Batch: c.Batch, SmallTables: c.SmallTables, Progress: out.show(),
	})
	return report(out, r, err)
}
