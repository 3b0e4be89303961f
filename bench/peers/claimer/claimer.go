// Package claimer asks several systems the question that Hapax answers: which of these ids are new?
package claimer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/report"
)

// An Order has all parameters of a process that claims.
type Order struct {
	Contender string
	Setting   string // one of the contender's settings
	Log       traffic.Log
	Batch     int // ids in one call
	InFlight  int // concurrent calls
	// MaxSeconds is the time after which no further batch is started. 0: no limit.
	MaxSeconds float64
	Socket     string // socket of its server
	Server     int    // process id of its server, 0 if it has none
	Data       string // the directory whose size is taken
	Dir        string // directory of its store
	Hold       bool   // it waits at the end of the log to be killed
}

// A Result is the result of a run.
type Result struct {
	Asked    uint64 // ids, repeats included: the first ones of the log
	Distinct uint64 // of them
	New      uint64 // ids that were reported as new
	// Seconds and CPUSeconds, of this process, exclude the generation of ids.
	Seconds    float64
	CPUSeconds float64
	Samples    []report.Sample // after each portion of the log
}

// A claims system is asked by InFlight goroutines.
type claims interface {
	// claim claims the ids, and returns how many of them were new. On its return the claims are as
	// durable as the contender makes them.
	claim(ctx context.Context, ids []uuid.UUID) (fresh int, err error)
	close() error
}

// portion is how many ids are generated at a time, while the clock is stopped.
const portion = 1 << 18

// Do implements runner.Work: it claims the ids of the log in order. It reports "at" with the number
// of the first ids that are all answered, and "result".
func (o *Order) Do(say *runner.Voice) error {
	r, err := o.ask(context.Background(), func(answered uint64) { say.Line("at", answered) })
	if err == nil {
		say.Line("result", r)
	}
	return err
}

func (o *Order) ask(ctx context.Context, progress func(answered uint64)) (r Result, err error) {
	c, ok := find(o.Contender)
	if !ok {
		return r, fmt.Errorf("there is no contender %q", o.Contender)
	}
	system, err := c.open(ctx, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, system.close()) }()
	seq := o.Log.Begin()
	ids, fresh := make([]uuid.UUID, 0, portion), make([]bool, 0, portion)
	for r.Asked < uint64(o.Log.N) && (o.MaxSeconds == 0 || r.Seconds < o.MaxSeconds) {
		ids, fresh = ids[:0], fresh[:0]
		for range min(portion, uint64(o.Log.N)-r.Asked) {
			n, repeat := seq.Next()
			ids, fresh = append(ids, o.Log.Source.UUID(n)), append(fresh, !repeat)
		}
		if err := o.portion(ctx, system, ids, fresh, &r, progress); err != nil {
			return r, err
		}
	}
	if o.Hold {
		<-ctx.Done()
	}
	return r, nil
}

// portion claims all ids, or as many as there is time for, and adds the result. isNew says which of
// them the log has for the first time.
func (o *Order) portion(ctx context.Context, system claims, ids []uuid.UUID, isNew []bool, sum *Result, progress func(answered uint64)) error {
	plan := callers.Plan{Callers: o.InFlight, Batch: o.Batch}
	if o.MaxSeconds > 0 {
		plan.Until = time.Now().Add(time.Duration((o.MaxSeconds - sum.Seconds) * float64(time.Second)))
	}
	cpu, err := servers.CPUSeconds(os.Getpid())
	if err != nil {
		return err
	}
	start := time.Now()
	var fresh, answered atomic.Int64
	asked, err := callers.Take(ctx, plan, ids, func(batch []uuid.UUID) func() error {
		return func() error {
			n, err := system.claim(ctx, batch)
			fresh.Add(int64(n))
			if done := answered.Add(int64(len(batch))); err == nil && o.InFlight == 1 {
				progress(sum.Asked + uint64(done))
			}
			return err
		}
	})
	if err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	after, err := servers.CPUSeconds(os.Getpid())
	if err != nil {
		return err
	}
	for _, n := range isNew[:asked] {
		if n {
			sum.Distinct++
		}
	}
	sum.Asked += uint64(asked)
	sum.New += uint64(fresh.Load())
	sum.Seconds += took
	sum.CPUSeconds += after - cpu
	sum.Samples = append(sum.Samples, o.sample(sum.Distinct, float64(asked)/took))
	return nil
}

func (o *Order) sample(stored uint64, perS float64) report.Sample {
	s := report.Sample{Stored: stored, PerS: perS, Disk: size(o.Data)}
	c, _ := find(o.Contender)
	switch {
	case o.Server == 0:
		s.Resident, _ = servers.ResidentBytes(os.Getpid())
	case c.oneProcess:
		s.Resident, _ = servers.ResidentBytes(o.Server)
	}
	return s
}

// size sums the sizes of the files below a directory. A file that vanishes meanwhile counts as
// nothing.
func size(dir string) (sum uint64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				sum += uint64(info.Size())
			}
		}
		return nil
	})
	return sum
}
