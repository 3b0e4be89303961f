package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type demoCmd struct {
	storeFlag
	Kills int     `help:"How often the consumer is killed." default:"6" placeholder:"N"`
	Dir   dirFlag `help:"New directory of the store; kept. Without it: a temporary one."`
}

func (c *demoCmd) Help() string {
	return "A real log (62,133 Gerrit changes) is consumed by a process that is killed (SIGKILL) on the way and started again, where it gets " +
		"some records again. Claims, work and offset commit together. In the end every event is looked up. Beside it: the same with a map " +
		"in the consumer's memory."
}

func (c *demoCmd) Run(ctx context.Context, out *output) error {
	o := bench.DemoOptions{Store: c.Store, Kills: c.Kills, Dir: string(c.Dir)}
	if !out.json {
		o.Tell = func(s string) { say(out.stdout, "%s\n", s) }
	}
	r, err := bench.Demo(ctx, o)
	if out.json {
		return report(out, r, err)
	}
	if err == nil || r.Sent > 0 {
		printDemo(out, &r)
	}
	return err
}

// printDemo prints the two tables side by side.
func printDemo(out *output, r *bench.DemoReport) {
	say(out.stdout, "\n%-16s %12s %16s\n", "", "engine", "in-memory map")
	for _, line := range []struct {
		name string
		of   func(*bench.DemoTable) uint64
	}{
		{"sent", func(t *bench.DemoTable) uint64 { return t.Sent }},
		{"distinct", func(t *bench.DemoTable) uint64 { return t.Distinct }},
		{"claimed", func(t *bench.DemoTable) uint64 { return t.Claimed }},
		{"duplicates", func(t *bench.DemoTable) uint64 { return t.Duplicate }},
		{"lost", func(t *bench.DemoTable) uint64 { return t.Lost }},
		{"claimed twice", func(t *bench.DemoTable) uint64 { return t.ClaimedTwice }},
	} {
		say(out.stdout, "%-16s %12d %16d\n", line.name, line.of(&r.DemoTable), line.of(&r.Memory))
	}
	say(out.stdout, "\n%d kills, %.1f s\n", r.Kills, r.Seconds)
}
