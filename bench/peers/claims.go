package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/bench/peers/claimer"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/report"
)

type claimsFlags struct {
	IDs         []int   `help:"Numbers of ids to claim, repeats included, each in a new store." name:"ids" default:"2000000"`
	MaxSeconds  float64 `help:"A run of claims ends after that time; its rate is that of the ids so far." default:"60"`
	Batch       []int   `help:"Sizes of batches of claims to try." default:"1000,10000"`
	InFlight    []int   `help:"Numbers of calls at once to try." default:"1,4,8"`
	TuneSeconds float64 `help:"How long each setting is tried." default:"3"`
}

// repeatedIDs is the share of the ids that repeat one.
const repeatedIDs = 0.05

func (c *cli) runClaims(ctx context.Context) error {
	src, err := traffic.NewSource(1, traffic.UUIDv4, 1, 1)
	if err != nil {
		return err
	}
	run := claiming{claimsFlags: c.Claims, g: c, log: traffic.Log{Source: src, Dup: repeatedIDs}}
	return c.compare(ctx, "claims", "thousand ids/s", slices.Max(run.IDs), func(t *table) ([]entry, error) { return run.entries(ctx, t) })
}

// claiming is a run of claims.
type claiming struct {
	claimsFlags
	g   *cli
	log traffic.Log // without its length
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

// entries tunes each contender. A contender is killed only in the run with the first number of ids.
func (r *claiming) entries(ctx context.Context, t *table) (all []entry, err error) {
	for _, c := range claimer.Contenders {
		if !r.g.wanted(c.Name) {
			continue
		}
		best, tried, err := r.tune(ctx, &c)
		if errors.Is(err, servers.ErrAbsent) {
			say("left out: %v", err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		for i, n := range r.IDs {
			row := report.Row{Name: c.Name, Durability: c.Durability, Settings: c.How, Setting: best.String(), Tried: tried}
			if len(r.IDs) > 1 {
				row.Work = fmt.Sprintf("%d ids", n)
			}
			e := entry{row: t.add(row)}
			switch {
			case i == 0 && c.Server != nil:
				e.kills = []kill{killProcess, killBoth}
			case i == 0:
				e.kills = []kill{killProcess}
			}
			e.run = func(ctx context.Context, k kill) (outcome, error) {
				if k != noKill {
					return r.kill(ctx, &c, best, n, k)
				}
				return r.one(ctx, &c, best, n, r.MaxSeconds)
			}
			all = append(all, e)
		}
	}
	return all, nil
}

// tune tries the settings on a fifth of the ids, and returns the fastest.
func (r *claiming) tune(ctx context.Context, c *claimer.Contender) (best choice, tried []report.Trial, err error) {
	settings := c.Settings
	if len(settings) == 0 {
		settings = []string{""}
	}
	most := 0.0
	for _, s := range settings {
		for _, b := range r.Batch {
			for _, n := range r.InFlight {
				ch := choice{s, b, n}
				o, err := r.one(ctx, c, ch, max(slices.Max(r.IDs)/5, 1), r.TuneSeconds)
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

// with calls do with an order for a new store, or for a running server.
func (r *claiming) with(ctx context.Context, c *claimer.Contender, ch choice, n int, do func(o *claimer.Order, s *servers.Server) error) (err error) {
	dir := filepath.Join(r.g.Dir, "store")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return r.g.onServer(ctx, c.Server, func(s *servers.Server) error {
		o := claimer.Order{
			Contender: c.Name, Setting: ch.setting, Log: r.log, Batch: ch.batch, InFlight: ch.inFlight,
			Socket: s.Socket, Server: s.PID(), Dir: dir, Data: dir,
		}
		if o.Log.N = n; c.Server != nil {
			o.Data = s.Data
		}
		return do(&o, s)
	})
}

// one claims the first n ids with one setting.
func (r *claiming) one(ctx context.Context, c *claimer.Contender, ch choice, n int, limit float64) (out outcome, err error) {
	err = r.with(ctx, c, ch, n, func(o *claimer.Order, s *servers.Server) error {
		o.MaxSeconds = limit
		before, err := s.CPUSeconds()
		if err != nil {
			return err
		}
		got, _, err := start[claimer.Result](ctx, o, nil)
		if err != nil {
			return err
		}
		after, err := s.CPUSeconds()
		out.asked = int(got.Asked)
		out.perS = float64(got.Asked) / max(got.Seconds, 1e-9)
		out.cpu = got.CPUSeconds + after - before
		if got.New != got.Distinct {
			out.wrong = fmt.Sprintf("%d of %d ids are new, %d were reported as new", got.Distinct, got.Asked, got.New)
		}
		out.samples = got.Samples
		return err
	})
	return out, err
}

// killAfter ends a run of a slow contender.
const killAfter = 5 * time.Second

// kill kills a contender when half of the ids are answered, one call at a time, and then claims
// these ids again: none of them may be new.
func (r *claiming) kill(ctx context.Context, c *claimer.Contender, ch choice, n int, k kill) (out outcome, err error) {
	ch.inFlight, ch.batch = 1, min(ch.batch, 1000)
	err = r.with(ctx, c, ch, n, func(o *claimer.Order, s *servers.Server) error {
		answered, started := uint64(0), time.Now()
		o.Hold = true
		_, killed, err := start[claimer.Result](ctx, o, func(at uint64) bool {
			answered = at
			return at >= uint64(n/2) || time.Since(started) > killAfter
		})
		if err == nil && !killed {
			err = errors.New("it ended before the kill")
		}
		if err == nil && k == killBoth {
			s.Kill()
			err = s.Start(ctx)
		}
		if err != nil {
			return err
		}
		o.Log.N, o.Hold = int(answered), false
		o.Server = s.PID()
		got, _, err := start[claimer.Result](ctx, o, nil)
		if got.New > 0 {
			out.wrong = fmt.Sprintf("%d of %d acknowledged ids are new again", got.New, got.Distinct)
		}
		return err
	})
	return out, err
}
