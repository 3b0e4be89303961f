// Package claimer asks several systems the question that Hapax answers: which of these ids are new?
package claimer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/report"
)

// An Order is a process that claims, and everything that it has to know.
type Order struct {
	Contender string
	Setting   string // one of the contender's
	Log       traffic.Log
	Batch     int // ids of one call
	InFlight  int // calls at once
	// MaxSeconds ends the run early: no further batch is begun. 0: it runs to the end.
	MaxSeconds float64
	Socket     string // of its server
	Server     int    // the id of its process, 0 if it has none
	Data       string // the directory whose size is taken
	Dir        string // of its store
	Hold       bool   // it stays where it is at the end of the log, to be killed
}

// A Result says what a run has done.
type Result struct {
	Asked    uint64 // ids, repeats included: the first ones of the log
	Distinct uint64 // of them
	New      uint64 // told to be new
	// Seconds and CPUSeconds, of this process, are without the making of ids.
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

// portion is how many ids are made at once, while the clock stands still.
const portion = 1 << 18

// Do implements runner.Work: it asks for the ids of the log in order. It reports "at" with the
// number of ids that are answered, when all before them are as well, and "result".
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
		run := running{order: o, ctx: ctx, system: system, progress: progress, before: r.Asked}
		if o.MaxSeconds > 0 {
			run.left = time.Duration((o.MaxSeconds - r.Seconds) * float64(time.Second))
		}
		if err := run.portion(ids, fresh, &r); err != nil {
			return r, err
		}
	}
	if o.Hold {
		<-ctx.Done()
	}
	return r, nil
}

// running is a run in one portion.
type running struct {
	order    *Order
	ctx      context.Context
	system   claims
	progress func(uint64)
	before   uint64        // answered in earlier portions
	left     time.Duration // 0: as long as it takes

	next, fresh atomic.Int64
	mu          sync.Mutex // guards err
	err         error
}

// portion has all ids claimed, or those for which there is time.
func (r *running) portion(ids []uuid.UUID, isNew []bool, sum *Result) error {
	cpu, err := servers.CPUSeconds(os.Getpid())
	if err != nil {
		return err
	}
	start := time.Now()
	if err := r.claimAll(ids); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	after, err := servers.CPUSeconds(os.Getpid())
	if err != nil {
		return err
	}
	asked := min(int(r.next.Load()), len(ids))
	for _, n := range isNew[:asked] {
		if n {
			sum.Distinct++
		}
	}
	sum.Asked += uint64(asked)
	sum.New += uint64(r.fresh.Load())
	sum.Seconds += took
	sum.CPUSeconds += after - cpu
	sum.Samples = append(sum.Samples, r.sample(sum.Distinct, float64(asked)/took))
	return nil
}

// claimAll lets the callers take batches of the ids.
func (r *running) claimAll(ids []uuid.UUID) error {
	start := time.Now()
	var all sync.WaitGroup
	for range r.order.InFlight {
		all.Go(func() { r.caller(ids, start) })
	}
	all.Wait()
	return r.err
}

// caller takes batches in order until there are none, or no time.
func (r *running) caller(ids []uuid.UUID, start time.Time) {
	for r.left == 0 || time.Since(start) < r.left {
		from := int(r.next.Add(int64(r.order.Batch))) - r.order.Batch
		if from >= len(ids) {
			return
		}
		to := min(from+r.order.Batch, len(ids))
		fresh, err := r.system.claim(r.ctx, ids[from:to])
		r.fresh.Add(int64(fresh))
		if err == nil {
			err = r.ctx.Err()
		}
		if err != nil {
			r.mu.Lock()
			r.err = errors.Join(r.err, err)
			r.mu.Unlock()
			return
		}
		if r.order.InFlight == 1 {
			r.progress(r.before + uint64(to))
		}
	}
}

func (r *running) sample(stored uint64, perS float64) report.Sample {
	s := report.Sample{Claimed: stored, Stored: stored, PerS: perS, Disk: size(r.order.Data)}
	c, _ := find(r.order.Contender)
	switch {
	case r.order.Server == 0:
		s.Resident, _ = servers.ResidentBytes(os.Getpid())
	case c.oneProcess:
		s.Resident, _ = servers.ResidentBytes(r.order.Server)
	}
	return s
}

// size sums the files below a directory. A file that vanishes meanwhile counts nothing.
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
