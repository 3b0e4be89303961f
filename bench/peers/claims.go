package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/traffic"
	"github.com/hapax-dev/hapax/bench/report"
)

type claimsCmd struct {
	claimFlags
	IDs        int     `help:"Ids to claim, repeats included." name:"ids" default:"2000000"`
	MaxSeconds float64 `help:"A run ends after that time; its rate is that of the ids so far." default:"60"`
}

// claimFlags are the flags of claims and of scale.
type claimFlags struct {
	Dup         float64 `help:"Share of the ids that repeat one." default:"0.05"`
	Batch       []int   `help:"Sizes of batches to try." default:"1000,10000"`
	InFlight    []int   `help:"Numbers of calls at once to try." default:"1,4,8"`
	TuneSeconds float64 `help:"How long each setting is tried." default:"3"`
}

// Run implements the command.
func (c *claimsCmd) Run(ctx context.Context, g *cli) error {
	run := claiming{claimsCmd: c, g: g, at: time.Now(), log: traffic.Log{Seed: g.Seed, N: c.IDs, Dup: c.Dup}}
	return run.report("claims", g.Rounds, func(tb *table) error { return run.all(ctx, tb) })
}

// report prints and keeps what do has added to a table.
func (r *claiming) report(name string, rounds int, do func(*table) error) error {
	start := time.Now()
	kept := report.Comparison{Records: r.IDs, Rounds: rounds, About: report.NewAbout("peers "+name, script, os.Args[1:])}
	tb := table{kept: &kept}
	err := do(&tb)
	tb.finish()
	kept.Seconds = time.Since(start).Seconds()
	if err != nil {
		kept.Error = err.Error()
	}
	tb.print("thousand ids/s")
	return errors.Join(err, r.g.keep(name, &kept))
}

// claiming is a run of the command, or of scale.
type claiming struct {
	*claimsCmd
	g   *cli
	log traffic.Log
	at  time.Time
}

// A choice is a setting of a contender.
type choice struct {
	setting         string
	batch, inFlight int
}

func (c choice) String() string {
	s := fmt.Sprintf("batch=%d inflight=%d", c.batch, c.inFlight)
	if c.setting != "" {
		s = c.setting + " " + s
	}
	return s
}

// all tunes each contender, runs it in each round, and then kills it.
func (r *claiming) all(ctx context.Context, tb *table) error {
	type entry struct {
		claimer.Contender
		choice choice
		row    *measured
	}
	var entries []entry
	for _, c := range claimer.Contenders {
		if !r.g.wanted(c.Name) {
			continue
		}
		row := report.Row{Name: c.Name, Durability: c.Durability, Settings: c.How}
		best, tried, err := r.tune(ctx, &c)
		if errors.Is(err, servers.ErrAbsent) {
			say("left out: %v", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		row.Setting, row.Tried = best.String(), tried
		entries = append(entries, entry{c, best, tb.add(row)})
	}
	for round := range r.g.Rounds {
		for i := range entries {
			e := &entries[(i+round*len(entries)/r.g.Rounds)%len(entries)]
			o, err := r.one(ctx, &e.Contender, e.choice, r.IDs, r.MaxSeconds)
			if err != nil {
				return fmt.Errorf("%s: %w", e.Name, err)
			}
			e.row.take(o)
			say("round %d of %d: %-16s %8.1f k/s  cpu %5.1f s  %s", round+1, r.g.Rounds, e.Name, o.perS/1e3, o.used.Seconds, o.wrongOrRight())
		}
	}
	for i := range entries {
		e := &entries[i]
		for _, k := range []kill{killProcess, killBoth} {
			if e.Blind || k == killBoth && e.Server == nil {
				continue
			}
			how, err := r.kill(ctx, &e.Contender, e.choice, k)
			if err != nil {
				return fmt.Errorf("%s, killed: %w", e.Name, err)
			}
			e.row.killed(k, how)
			say("%v: %-16s %s", k, e.Name, how)
		}
	}
	return nil
}

// tune tries the settings on a fifth of the ids, and returns the quickest.
func (r *claiming) tune(ctx context.Context, c *claimer.Contender) (best choice, tried []report.Trial, err error) {
	settings, batches, inFlight := c.Settings, r.Batch, r.InFlight
	if len(settings) == 0 {
		settings = []string{""}
	}
	if c.Rows {
		batches = batches[:1]
	}
	if c.InFlight != nil {
		inFlight = c.InFlight
	}
	most := 0.0
	for _, s := range settings {
		for _, b := range batches {
			for _, n := range inFlight {
				ch := choice{s, b, n}
				o, err := r.one(ctx, c, ch, max(r.IDs/5, 1), r.TuneSeconds)
				if err != nil {
					return best, nil, fmt.Errorf("%v: %w", ch, err)
				}
				tried = append(tried, report.Trial{Setting: ch.String(), PerS: o.perS})
				say("tried: %-16s %-40v %8.1f k/s", c.Name, ch, o.perS/1e3)
				if o.perS > most {
					best, most = ch, o.perS
				}
			}
		}
	}
	return best, tried, nil
}

// with calls do with an order for a new store, or a server that runs.
func (r *claiming) with(ctx context.Context, c *claimer.Contender, ch choice, do func(o *claimer.Order, s *servers.Server) error) (err error) {
	dir := filepath.Join(r.g.Dir, "store")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, stop, err := startServer(ctx, c.Server, r.g.options("server"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	o := claimer.Order{
		Contender: c.Name, Setting: ch.setting, Log: r.log, At: r.at, Batch: ch.batch, InFlight: ch.inFlight,
		Socket: server.Socket, Server: server.PID(), Dir: dir, Data: dir,
	}
	if c.Server != nil {
		o.Data = server.Data
	}
	return do(&o, server)
}

// one claims the first n ids with one setting.
func (r *claiming) one(ctx context.Context, c *claimer.Contender, ch choice, n int, limit float64) (out outcome, err error) {
	err = r.with(ctx, c, ch, func(o *claimer.Order, s *servers.Server) error {
		o.Log.N, o.MaxSeconds = n, limit
		used, err := use(s, r.g.Dir)
		if err != nil {
			return err
		}
		a, _, err := start[claimer.Result](ctx, "claim", o, nil)
		if err != nil {
			return err
		}
		got := &a.Result
		out.asked = int(got.Asked)
		out.perS = float64(got.Asked) / max(got.Seconds, 1e-9)
		out.used, err = used(got.CPUSeconds)
		if !c.Blind && got.New != got.Distinct {
			out.wrong = fmt.Sprintf("%d of %d ids are new, %d were reported as new", got.Distinct, got.Asked, got.New)
		}
		for _, x := range got.Samples {
			out.samples = append(out.samples, report.Sample{Claimed: x.Stored, Stored: x.Stored, PerS: x.PerS, Disk: x.Disk, Resident: x.Resident})
		}
		return err
	})
	return out, err
}

// killAfter ends a run of a slow contender.
const killAfter = 5 * time.Second

// kill kills a contender when half of the ids are answered, one call at a time, and asks for all of
// these again: none of them is new.
func (r *claiming) kill(ctx context.Context, c *claimer.Contender, ch choice, k kill) (how string, err error) {
	ch.inFlight, ch.batch = 1, min(ch.batch, 1000)
	err = r.with(ctx, c, ch, func(o *claimer.Order, s *servers.Server) error {
		answered, started := uint64(0), time.Now()
		o.Hold = true
		_, killed, err := start[claimer.Result](ctx, "claim", o, func(n uint64) bool {
			answered = n
			return n >= uint64(r.IDs/2) || time.Since(started) > killAfter
		})
		if err == nil && !killed {
			err = errors.New("it came to its end by itself")
		}
		if err != nil {
			return err
		}
		if k == killBoth {
			s.Kill()
			if err := s.Start(ctx); err != nil {
				return err
			}
		}
		o.Log.N, o.Hold = int(answered), false
		o.Server = s.PID()
		a, _, err := start[claimer.Result](ctx, "claim", o, nil)
		if how = right; a.Result.New > 0 {
			how = fmt.Sprintf("WRONG: %d of %d acknowledged ids are new again", a.Result.New, a.Result.Distinct)
		}
		return err
	})
	return how, err
}
