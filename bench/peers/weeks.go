package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/report"
)

type weeksCmd struct {
	PerWeek int `help:"Claims of each week." default:"1000000"`
	Weeks   int `help:"Weeks." default:"8"`
	Keep    int `help:"Weeks that are kept besides the newest." default:"3"`
}

// Run implements the command.
func (c *weeksCmd) Run(ctx context.Context, g *cli) error {
	if !g.wanted("hapax") {
		return nil
	}
	order := claimer.WeeksOrder{PerWeek: c.PerWeek, Weeks: c.Weeks, Keep: c.Keep, Seed: g.Seed, Dir: filepath.Join(g.Dir, "weeks")}
	start := time.Now()
	written, err := servers.DiskWritten(g.Dir)
	if err != nil {
		return err
	}
	a, err := startWeeks(ctx, order)
	r := report.Comparison{
		Records: c.PerWeek * c.Weeks, Rounds: 1, Seconds: time.Since(start).Seconds(), About: report.NewAbout("peers weeks", script, os.Args[1:]),
	}
	if err != nil {
		r.Error = err.Error()
		return errors.Join(err, g.keep("weeks", &r))
	}
	after, err := servers.DiskWritten(g.Dir)
	if err != nil {
		return err
	}
	perS := float64(r.Records) / max(a.Result.Seconds, 1e-9)
	r.Rows = []report.Row{{
		Name: "hapax", PerS: report.Spread{Median: perS, Min: perS, Max: perS}, CPUSeconds: a.CPUSeconds, WrittenBytes: after - written,
		Samples: a.Result.Samples, Durability: "synced before the answer",
		Settings: fmt.Sprintf("the engine's clock jumps to the next week after %d claims; %d weeks are kept besides the newest", c.PerWeek, c.Keep),
	}}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "week\tclaimed\tstored\tthousand/s\tMB on disk\tMB resident")
	for i, s := range a.Result.Samples {
		if i+1 == len(a.Result.Samples) || a.Result.Samples[i+1].Week != s.Week {
			_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%.1f\t%.0f\t%.0f\n", s.Week, s.Claimed, s.Stored, s.PerS/1e3, float64(s.Disk)/1e6, float64(s.Resident)/1e6)
		}
	}
	return errors.Join(w.Flush(), g.keep("weeks", &r))
}

func startWeeks(ctx context.Context, o claimer.WeeksOrder) (a answer[claimer.WeeksResult], err error) {
	if err := os.RemoveAll(o.Dir); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	a, _, err = start[claimer.WeeksResult](ctx, "weeks", o, nil)
	return a, err
}
