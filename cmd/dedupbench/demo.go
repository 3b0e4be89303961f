package main

import (
	"context"

	"github.com/hapax-dev/hapax/bench"
)

type demoCmd struct{ bench.DemoOptions }

func (c *demoCmd) Help() string {
	return "Events, a fifth of them repeats, are consumed by a process that is killed (SIGKILL) several times and restarted. Claim, work " +
		"and offset commit together; at the end every event is checked. Two other consumers are killed at the same points: one with " +
		"a set of ids in memory, and a plain one that commits after the handler."
}

func (c *demoCmd) Run(ctx context.Context, out *output) error {
	if !out.json {
		c.Tell = func(sentence string) { say(out.stdout, "%s\n", sentence) }
	}
	r, err := bench.Demo(ctx, c.DemoOptions)
	if out.json {
		return report(out, r, err)
	}
	if err == nil || r.Sent > 0 {
		out.printed = true
		printDemo(out, &r)
	}
	return err
}

// printDemo prints the three tables next to each other.
func printDemo(out *output, r *bench.DemoReport) {
	say(out.stdout, "\n%-16s %14s %14s %14s\n", "", "Hapax", "in-memory set", "at least once")
	for _, line := range []struct {
		name string
		of   func(*bench.DemoTable) uint64
	}{
		{"sent", func(t *bench.DemoTable) uint64 { return t.Sent }},
		{"distinct", func(t *bench.DemoTable) uint64 { return t.Distinct }},
		{"handled", func(t *bench.DemoTable) uint64 { return t.Handled }},
		{"lost", func(t *bench.DemoTable) uint64 { return t.Lost }},
		{"handled twice", func(t *bench.DemoTable) uint64 { return t.HandledTwice }},
	} {
		say(out.stdout, "%-16s %14d %14d %14d\n", line.name, line.of(&r.DemoTable), line.of(&r.MemorySet), line.of(&r.AtLeastOnce))
	}
	say(out.stdout, "%-16s %14.1f %14.1f %14.1f\n", "seconds", r.ConsumeSeconds, r.MemorySet.ConsumeSeconds, r.AtLeastOnce.ConsumeSeconds)
	say(out.stdout, "\n%d kills of each, %.1f s in all\n", r.Kills, r.Seconds)
}
