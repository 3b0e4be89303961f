package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/traffic"
	"github.com/hapax-dev/hapax/bench/report"
)

type scaleCmd struct {
	claimFlags
	IDs        []int   `help:"Numbers of ids to claim, ascending, each in a new store." name:"ids" default:"1000000,10000000,100000000"`
	MaxSeconds float64 `help:"A run ends after that time; its rate is that of the ids so far, and the contender gets no larger number." default:"300"`
}

// Run implements the command.
func (c *scaleCmd) Run(ctx context.Context, g *cli) error {
	claims := claimsCmd{claimFlags: c.claimFlags, IDs: slices.Max(c.IDs), MaxSeconds: c.MaxSeconds}
	run := claiming{claimsCmd: &claims, g: g, at: time.Now(), log: traffic.Log{Seed: g.Seed, N: claims.IDs, Dup: c.Dup}}
	return run.report("scale", 1, func(tb *table) error { return run.scale(ctx, tb, c.IDs) })
}

// scale runs each contender with each number of ids. Those that keep claims in memory alone run
// only if they are named: it may not be enough.
func (r *claiming) scale(ctx context.Context, tb *table, numbers []int) error {
	for _, c := range claimer.Contenders {
		inMemory := c.Durability == "nothing" || strings.HasPrefix(c.Name, "redis")
		if !r.g.wanted(c.Name) || inMemory && len(r.g.Only) == 0 {
			continue
		}
		best, tried, err := r.tune(ctx, &c)
		if errors.Is(err, servers.ErrAbsent) {
			say("left out: %v", err)
			continue
		}
		if err == nil {
			err = r.rise(ctx, tb, numbers, &c, best, report.Row{Name: c.Name, Durability: c.Durability, Settings: c.How, Setting: best.String(), Tried: tried})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// rise runs a contender with one number of ids after the other, while it completes them.
func (r *claiming) rise(ctx context.Context, tb *table, numbers []int, c *claimer.Contender, ch choice, row report.Row) error {
	for _, n := range numbers {
		o, err := r.one(ctx, c, ch, n, r.MaxSeconds)
		if err != nil {
			return err
		}
		if row.Work = fmt.Sprintf("%d ids", n); n%1e6 == 0 {
			row.Work = fmt.Sprintf("%d M ids", n/1e6)
		}
		tb.add(row).take(o)
		say("%-16s %9d of %9d ids  %8.1f k/s  cpu %6.1f s  %s", c.Name, o.asked, n, o.perS/1e3, o.used.Seconds, o.wrongOrRight())
		if o.asked < n {
			break
		}
	}
	return nil
}
