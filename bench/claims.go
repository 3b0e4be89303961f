package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// ClaimsOptions configure Claims.
type ClaimsOptions struct {
	Common     `set:"dir=New directory to make the stores in; they are removed. Without it: a temporary one."`
	N          int     `help:"Events to judge, repeats included." default:"1000000" placeholder:"N"`
	Dup        float64 `help:"Share of the events that repeat an earlier id, from 0 to below 1: half of them one of the last 10,000 ids, half any of all history." default:"0.05" placeholder:"SHARE"`
	Batch      int     `help:"Events judged by one call." default:"1000" placeholder:"N"`
	IDs        IDKind  `help:"Form of the ids: ${enum}." enum:"uuidv4,uuidv7,text" default:"uuidv4" name:"ids"`
	Scopes     int     `help:"Scopes that the events are spread over." default:"1" placeholder:"N"`
	Weeks      int     `help:"Weeks that the events are spread over, ending with the current one." default:"1" placeholder:"N"`
	Baseline   bool    `help:"Feed the bare store library as well: the same keys, and values of the same size, written blindly in durable batches of the same size by as many goroutines, with the sizes of memtables and compactions that are best for it."`
	Goroutines int     `help:"Callers at once, on both sides: 1 compares one consumer's loop with one blind writer." default:"1" placeholder:"N"`
	Rounds     int     `help:"Repeat everything on new stores, engine and baseline first in turn. 0: two rounds with --baseline, one without." default:"0" placeholder:"N"`
	Seed       uint64  `help:"Seed of the ids." default:"1"`
}

// A ClaimsReport says how fast events were judged, and at what cost. Rates count all events,
// repeats included, over the time that the engine or the bare store took: it excludes the
// generation of ids. A figure that was not requested is null.
type ClaimsReport struct {
	ClaimsPerS float64 `json:"claims_per_s"`
	// BaselinePerS is the rate of the same keys and values in the bare store library, in blind,
	// durable batches of the same size, by as many goroutines. Ratio is ClaimsPerS over it; Ratios
	// are those of the rounds.
	BaselinePerS *float64  `json:"baseline_per_s"`
	Ratio        *float64  `json:"ratio"`
	Ratios       []float64 `json:"ratios,omitempty"`

	// BytesPerClaim is the size of all files of the closed store for each claim; ClaimBytesPerClaim
	// that of the claims alone, as the store estimates it.
	BytesPerClaim      float64 `json:"bytes_per_claim"`
	ClaimBytesPerClaim float64 `json:"claim_bytes_per_claim"`
	// WriteAmplification is all bytes written to files, log included, over the bytes of the claims'
	// keys and records. It is taken when the store is idle.
	WriteAmplification float64 `json:"write_amplification"`
	// HeapBytes is the growth of the heap, after a collection, from before the engine was opened
	// until it had judged all events: filters, cache and the store's data.
	HeapBytes uint64 `json:"heap_bytes"`
	// FilterFPRate is the share of the new events that the filter considered possible repeats.
	FilterFPRate float64 `json:"filter_fp_rate"`

	// Percentiles of the time of one call.
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`

	Events    uint64  `json:"events"`
	Claimed   uint64  `json:"claimed"`
	Duplicate uint64  `json:"duplicate"`
	Seconds   float64 `json:"seconds"`
	// By round: which was measured first.
	First []string `json:"first,omitempty"`
	Outcome
}

// Claims measures how fast events are judged, and how fast the bare store library writes them.
func Claims(ctx context.Context, o ClaimsOptions) (report ClaimsReport, err error) {
	defer report.end(&err)
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(o.Seed, o.IDs, o.Scopes, o.Weeks)
	if err != nil {
		return report, err
	}
	run := claiming{ClaimsOptions: o, judged: newJudged(), ctx: ctx, source: src, report: &report}
	if run.kind, err = o.Store.kind(); err != nil {
		return report, err
	}
	err = inPlace(o.Dir, run.inRounds)
	run.finish()
	return report, err
}

func (o *ClaimsOptions) complete() error {
	if o.Rounds == 0 {
		o.Rounds = 1
		if o.Baseline {
			o.Rounds = 2
		}
	}
	if min(o.N, o.Batch, o.Goroutines, o.Scopes, o.Weeks) < 1 || o.Rounds < 0 || o.Goroutines > maxGoroutines {
		return fmt.Errorf("%w: give numbers from 1, and up to %d goroutines", ErrUsage, maxGoroutines)
	}
	if !(o.Dup >= 0 && o.Dup < 1) {
		return fmt.Errorf("%w: a share of repeats of %v: give one from 0 to below 1", ErrUsage, o.Dup)
	}
	return nil
}

const maxGoroutines = 4096

// claiming is a run of Claims.
type claiming struct {
	ClaimsOptions
	*judged
	ctx    context.Context
	kind   storeKind
	source source
	report *ClaimsReport

	engine, raw         fed // of all rounds
	negatives, falsePos uint64
	diskBytes           uint64
	claimBytes          uint64
	writtenBytes        uint64
}

func (c *claiming) feeding(stage string) *feeding {
	return &feeding{source: c.source, stage: stage, n: c.N, batch: c.Batch, callers: c.Goroutines, repeats: c.Dup, progress: c.Progress}
}

func (c *claiming) inRounds(dir string) error {
	ours, raw := &timing{take: c.feedEngine}, &timing{take: c.feedRaw}
	timings := []*timing{ours, raw}
	if !c.Baseline {
		timings = timings[:1]
	}
	if err := inRounds(c.Rounds, dir, timings...); err != nil {
		return err
	}
	for i := range raw.perS {
		c.report.First = append(c.report.First, []string{"engine", "baseline"}[i%2])
		c.report.Ratios = append(c.report.Ratios, ours.perS[i]/raw.perS[i])
	}
	if c.claimed != c.engine.fresh {
		return fmt.Errorf("%w: of %d distinct events %d got the verdict claimed: report it with the command line", ErrNotHeld, c.engine.fresh, c.claimed)
	}
	return nil
}

// feedEngine opens an engine in dir, feeds it all events, and takes its figures.
func (c *claiming) feedEngine(dir string) (perS float64, err error) {
	before := heapBytes()
	e, err := openEngine(c.Store, dir, tuning{}, c.source.options())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := c.all(c.ctx, c.feeding("engine"), e)
	c.engine.add(f)
	if err == nil {
		err = c.takeFigures(e, before)
	}
	if err = errors.Join(err, e.Close()); err != nil {
		return 0, err
	}
	disk, err := fileBytes(dir, nil)
	c.diskBytes += disk
	return f.perS(), err
}

// feedRaw feeds the bare store all events.
func (c *claiming) feedRaw(dir string) (perS float64, err error) {
	raw, err := c.kind.raw(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	now := time.Now()
	var pairs []rawPair
	f, err := feed(c.ctx, c.feeding("bare store"), func(events []engine.Event) ([]rawPair, error) {
		pairs = pairs[:0]
		for i := range events {
			p, err := pairLike(&events[i], now)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, p)
		}
		return pairs, nil
	}, raw.put)
	c.raw.add(f)
	return f.perS(), errors.Join(err, raw.Close())
}

// takeFigures takes the figures that need an open engine.
func (c *claiming) takeFigures(e *opened, heapBefore uint64) error {
	if after := heapBytes(); after > heapBefore {
		c.report.HeapBytes = max(c.report.HeapBytes, after-heapBefore)
	}
	c.Progress.tell("come to rest", 0, 0)
	if err := e.comeToRest(c.ctx); err != nil {
		return err
	}
	stats, err := e.Stats()
	if err != nil {
		return err
	}
	c.negatives += stats.FilterNegatives
	c.falsePos += stats.FilterFalsePositives
	c.writtenBytes += stats.Store.WrittenBytes
	weeks, err := e.Weeks(c.ctx)
	if err != nil {
		return err
	}
	for _, w := range weeks {
		c.claimBytes += w.Bytes
	}
	return nil
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// finish computes the figures from the sums, also of a run that failed.
func (c *claiming) finish() {
	r := c.report
	r.Claimed, r.Duplicate = c.claimed, c.duplicate
	r.Events, r.Seconds, r.ClaimsPerS = c.engine.n, c.engine.took.Seconds(), c.engine.perS()
	if raw := c.raw.perS(); raw > 0 {
		r.BaselinePerS, r.Ratio = &raw, over(&r.ClaimsPerS, &raw)
	}
	if fresh := float64(c.engine.fresh); fresh > 0 {
		r.BytesPerClaim = float64(c.diskBytes) / fresh
		r.ClaimBytesPerClaim = float64(c.claimBytes) / fresh
		r.WriteAmplification = float64(c.writtenBytes) / float64(max(c.logicalBytes, 1))
	}
	if c.negatives+c.falsePos > 0 {
		r.FilterFPRate = float64(c.falsePos) / float64(c.negatives+c.falsePos)
	}
	micros := func(percentile float64) float64 { return float64(c.calls.ValueAtPercentile(percentile)) / 1e3 }
	r.P50, r.P99, r.P999 = micros(50), micros(99), micros(99.9)
}
