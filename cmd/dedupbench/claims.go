package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/hapax-dev/hapax/bench"
)

type claimsCmd struct {
	storeFlag
	N          int          `help:"Events to judge, repeats included." default:"1000000" placeholder:"N"`
	Dup        float64      `help:"Share of the events that repeat an earlier id, from 0 to below 1: half of them one of the last 10,000 ids, half any of all history." default:"0.05" placeholder:"SHARE"`
	Batch      int          `help:"Events judged by one call." default:"1000" placeholder:"N"`
	IDs        bench.IDKind `help:"Form of the ids: ${enum}." enum:"uuidv4,uuidv7,text" default:"uuidv4" name:"ids"`
	Scopes     int          `help:"Scopes that the events are spread over." default:"1" placeholder:"N"`
	Weeks      int          `help:"Weeks that the events are spread over, ending with the current one." default:"1" placeholder:"N"`
	Baseline   bool         `help:"Feed the bare store library as well: the same keys, and values of the same size, written blindly in durable batches of the same size by as many goroutines, with the settings that our store uses."`
	Single     bool         `help:"Claim events one by one, and measure the disk's own fdatasync beside it."`
	Goroutines int          `help:"Callers at once, on both sides: 1 is one consumer's loop beside one blind writer." default:"1" placeholder:"N"`
	Rounds     int          `help:"Repeat everything on new stores, engine and baseline first in turn. 0: two rounds with --baseline, one without." default:"0" placeholder:"N"`
	Dir        dirFlag      `help:"New directory to make the stores in; they are removed. Without it: a temporary one."`
	Seed       uint64       `help:"Seed of the ids." default:"1"`
	CPUProfile string       `help:"Write a CPU profile of the engine's part to this file." name:"cpuprofile" type:"path" placeholder:"FILE"`
	MemProfile string       `help:"Write a heap profile to this file when the engine has seen everything." name:"memprofile" type:"path" placeholder:"FILE"`
}

func (c *claimsCmd) Help() string {
	return "Rates count all events over the time in which the engine, or the bare store, had them. Ids, and the baseline's keys and values, " +
		"are made in portions while the clock stands still; engine and baseline run one after the other, and who goes first alternates " +
		"with the rounds."
}

func (c *claimsCmd) Run(ctx context.Context, out *output) error {
	o := bench.ClaimsOptions{
		N: c.N, Dup: c.Dup, Batch: c.Batch, IDs: c.IDs, Scopes: c.Scopes, Weeks: c.Weeks, Store: c.Store,
		Goroutines: c.Goroutines, Single: c.Single, Baseline: c.Baseline, Rounds: c.Rounds,
		Dir: string(c.Dir), Seed: c.Seed, Progress: out.show(),
	}
	if c.CPUProfile != "" || c.MemProfile != "" {
		o.Profile = c.profile
	}
	r, err := bench.Claims(ctx, o)
	return report(out, r, err)
}

// profile starts the profiles that were asked for; of several rounds the last one stays.
func (c *claimsCmd) profile() (stop func() error, err error) {
	var cpu *os.File
	if c.CPUProfile != "" {
		if cpu, err = os.Create(c.CPUProfile); err != nil {
			return nil, fmt.Errorf("writing the CPU profile: %w", err)
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, fmt.Errorf("writing the CPU profile: %w", err)
		}
	}
	return func() error {
		if cpu != nil {
			pprof.StopCPUProfile()
			if err := cpu.Close(); err != nil {
				return fmt.Errorf("writing the CPU profile: %w", err)
			}
		}
		return c.writeHeap()
	}, nil
}

func (c *claimsCmd) writeHeap() error {
	if c.MemProfile == "" {
		return nil
	}
	f, err := os.Create(c.MemProfile)
	if err != nil {
		return fmt.Errorf("writing the heap profile: %w", err)
	}
	runtime.GC()
	if err := pprof.WriteHeapProfile(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("writing the heap profile: %w", err)
	}
	return f.Close()
}
