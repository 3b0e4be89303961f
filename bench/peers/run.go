package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/report"
)

// A kill says which processes are killed half-way.
type kill int

const (
	noKill kill = iota
	killProcess
	killBoth // the process, and its server
)

func (k kill) String() string {
	return [...]string{"not killed", "process killed", "process and server killed"}[k]
}

// An entry is a contender with its work.
type entry struct {
	row   *measured
	kills []kill // the kills that are tried
	// run runs the contender, and kills it half-way if k says so.
	run func(ctx context.Context, k kill) (outcome, error)
}

// compare runs every entry in each round, in rotating order, and then the kills. It prints and keeps
// the result.
func (c *cli) compare(ctx context.Context, name, unit string, records int, fill func(t *table) ([]entry, error)) error {
	start := time.Now()
	kept := report.Comparison{Records: records, Rounds: c.Rounds, About: report.NewAbout("peers "+name, script, os.Args[1:])}
	t := table{kept: &kept}
	entries, err := fill(&t)
	if err == nil {
		err = c.rounds(ctx, entries)
	}
	t.finish()
	if kept.Seconds = time.Since(start).Seconds(); err != nil {
		kept.Error = err.Error()
	}
	t.print(unit)
	return errors.Join(err, c.keep(name, &kept))
}

func (c *cli) rounds(ctx context.Context, entries []entry) error {
	absent := map[*measured]bool{}
	run := func(e *entry, k kill) (outcome, error) {
		o, err := e.run(ctx, k)
		if errors.Is(err, servers.ErrAbsent) {
			say("left out: %v", err)
			absent[e.row] = true
			return o, nil
		}
		if err != nil {
			err = fmt.Errorf("%s, %s, %v: %w", e.row.Name, e.row.Work, k, err)
		}
		return o, err
	}
	for round := range c.Rounds {
		for i := range entries {
			e := &entries[(i+round*len(entries)/c.Rounds)%len(entries)]
			if absent[e.row] {
				continue
			}
			o, err := run(e, noKill)
			if err != nil {
				return err
			}
			if !absent[e.row] {
				e.row.take(o)
				say("round %d of %d: %-20s %-10s %8.1f k/s  cpu %5.1f s  %s", round+1, c.Rounds, e.row.Name, e.row.Work, o.perS/1e3, o.cpu, o.wrongOrRight())
			}
		}
	}
	for i := range entries {
		e := &entries[i]
		for _, k := range e.kills {
			if absent[e.row] {
				continue
			}
			o, err := run(e, k)
			if err != nil {
				return err
			}
			e.row.killed(k, o.wrongOrRight())
			say("%v: %-20s %s", k, e.row.Name, o.wrongOrRight())
		}
	}
	return nil
}

// start runs a process to its end. It calls at with the progress, and kills the process with
// SIGKILL when at returns true. nil: no kill.
func start[R any](ctx context.Context, work runner.Work, at func(n uint64) bool) (r R, killed bool, err error) {
	l := runner.Lives{Next: func(runner.Kill) runner.Work { return work }}
	done := false
	l.Hear = map[string]runner.Hearing{
		"at": runner.Hears(func(n uint64) error {
			if at != nil && at(n) {
				l.Kill()
			}
			return nil
		}),
		"result": runner.Hears(func(got R) error {
			r, done = got, true
			return nil
		}),
	}
	err = l.Run(ctx)
	return r, err == nil && !done, err
}

// onServer makes and starts a contender's server, and calls do with it. For a contender without a
// server, do gets a server that does nothing.
func (c *cli) onServer(ctx context.Context, newServer func(context.Context, servers.Options) (*servers.Server, error), do func(s *servers.Server) error) (err error) {
	o := c.options("server")
	if newServer == nil {
		return do(&servers.Server{})
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		return err
	}
	s, err := newServer(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Remove()) }()
	if err := s.Start(ctx); err != nil {
		return err
	}
	return do(s)
}
