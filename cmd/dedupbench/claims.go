package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/hapax-dev/hapax/bench"
)

type claimsCmd struct {
	bench.ClaimsOptions
	CPUProfile string `help:"Write a CPU profile of the engine's part to this file." name:"cpuprofile" type:"path" placeholder:"FILE"`
	MemProfile string `help:"Write a heap profile to this file when the engine has seen everything." name:"memprofile" type:"path" placeholder:"FILE"`
}

func (*claimsCmd) Help() string {
	return "Rates count all events over the time in which the engine, or the bare store, had them. Ids, and the baseline's keys and values, " +
		"are made in portions while the clock stands still; engine and baseline run one after the other, and who goes first alternates " +
		"with the rounds."
}

func (c *claimsCmd) Run(ctx context.Context, out *output) error {
	c.Profile = c.profile
	c.Show(out.show())
	r, err := bench.Claims(ctx, c.ClaimsOptions)
	return report(out, r, err)
}

// profile starts the profiles that were asked for; of several rounds the last one stays.
func (c *claimsCmd) profile() (stop func() error, err error) {
	if c.CPUProfile == "" {
		return c.writeHeap, nil
	}
	f, err := os.Create(c.CPUProfile)
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		return nil, fmt.Errorf("writing the CPU profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		return errors.Join(f.Close(), c.writeHeap())
	}, nil
}

func (c *claimsCmd) writeHeap() error {
	if c.MemProfile == "" {
		return nil
	}
	f, err := os.Create(c.MemProfile)
	if err == nil {
		runtime.GC()
		err = errors.Join(pprof.WriteHeapProfile(f), f.Close())
	}
	if err != nil {
		return fmt.Errorf("writing the heap profile: %w", err)
	}
	return nil
}
