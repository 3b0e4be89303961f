package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
)

// ClaimsOptions configure Claims.
type ClaimsOptions struct {
	Common         `set:"dir=New directory to make the stores in; they are removed. Without it: a temporary one."`
	N              int             `help:"Events to judge, repeats included." default:"1000000"`
	Dup            float64         `help:"Share of the events that repeat an earlier id, from 0 to below 1." default:"0.05"`
	Repeats        traffic.Repeats `help:"Which ids are repeated: any of all history, recent ones (the last 10,000), or mixed (half of each)." enum:"mixed,recent,all" default:"mixed"`
	Batch          int             `help:"Events judged by one call." default:"1000"`
	IDs            traffic.IDKind  `help:"Form of the ids: ${enum}." enum:"uuidv4,prefixed,ulid,numeric,url" default:"uuidv4" name:"ids"`
	Baseline       bool            `help:"Feed the bare store library as well: the same keys, and values of the same size, written blindly in durable batches of the same size. The first round tries each of its settings, with one batch of each caller in flight and with as many as the engine has; the fastest is the baseline."`
	Goroutines     int             `help:"Callers at once, on both sides: 1 compares one consumer's loop with one blind writer." default:"1"`
	InFlight       int             `help:"Batches that each caller has in flight: it starts the next ones before the first is done. The baseline has a goroutine for each." default:"1"`
	CacheMiB       uint            `help:"Block cache of Pebble, in MiB. 0: its default, 128." default:"0" name:"cache-mib"`
	MaxFilterBytes uint64          `help:"Maximum size of the engine's filters, in bytes: with few, most events are looked up in the store. 0: its default, a share of the memory." default:"0"`
	Rounds         int             `help:"Repeat everything on new stores, engine and baseline first in turn. 0: two rounds with --baseline, one without." default:"0"`
}

// A ClaimsReport says how fast events were judged, and at what cost. Rates count all events,
// repeats included, over the time that the engine or the bare store took: it excludes the
// generation of ids. A figure that was not requested is null.
type ClaimsReport struct {
	ClaimsPerS float64 `json:"claims_per_s"`
	// BaselinePerS is the rate at which the bare store library writes the same keys and values,
	// blindly, in durable batches of the same size, with BaselineSetting. That is the fastest
	// setting of the first round, whose rates are in BaselineGrid. Ratio is ClaimsPerS divided by
	// BaselinePerS; Ratios are the ratios of the rounds.
	BaselinePerS    *float64      `json:"baseline_per_s"`
	Ratio           *float64      `json:"ratio"`
	Ratios          []float64     `json:"ratios,omitempty"`
	BaselineSetting string        `json:"baseline_setting,omitempty"`
	BaselineGrid    []SettingRate `json:"baseline_grid,omitempty"`

	// LastOverFirst is the rate of the last tenth of the events divided by that of the first tenth.
	LastOverFirst *float64 `json:"last_over_first"`
	// CPUPerClaim is the processor time of the process for each event, user and system, from the
	// open engine until the store is idle. It includes all goroutines and compactions, and excludes
	// the generation of ids. Null if the operating system is not Linux.
	CPUPerClaim *float64 `json:"cpu_us_per_claim"`

	// BytesPerClaim is the size of all files of the closed store for each claim; ClaimBytesPerClaim
	// that of the claims alone, as the store estimates it.
	BytesPerClaim      float64 `json:"bytes_per_claim"`
	ClaimBytesPerClaim float64 `json:"claim_bytes_per_claim"`
	// WriteAmplification is the number of bytes written to files, log included, divided by the
	// bytes of the claims' keys and records. It is measured when the store is idle.
	WriteAmplification float64 `json:"write_amplification"`
	// HeapBytes is the growth of the heap, after a collection, from before the engine was opened
	// until it had judged all events: cache, small filters and the store's data. Large filters are
	// outside the heap (Linux).
	HeapBytes uint64 `json:"heap_bytes"`
	// RSSBytes is the resident memory of the process when the engine has judged all events, with
	// the store's cache and the program. In later rounds it includes what is left of earlier
	// rounds. It is the maximum of the rounds. Null if the operating system is not Linux.
	RSSBytes *uint64 `json:"rss_bytes"`
	// FilterFPRate is the share of the new events that the filter considered possible repeats.
	FilterFPRate float64 `json:"filter_fp_rate"`
	// FiltersSaturatedAt is how many events a round had judged when a filter was first found full
	// without room to grow, or evicted: from then on, more and more new events were looked up in the
	// store. Filters are asked after each 262,144 events, and after each tenth at either end. It is the
	// least of the rounds, and null if filters had room in all of them.
	FiltersSaturatedAt *uint64 `json:"filters_saturated_at"`

	// Percentiles of the time from the start of a batch until its caller has the results.
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`

	Events    uint64  `json:"events"`
	Claimed   uint64  `json:"claimed"`
	Duplicate uint64  `json:"duplicate"`
	Seconds   float64 `json:"seconds"`
	Rounds    int     `json:"rounds"`
	Outcome
}

// A SettingRate is the rate of the bare store library with one of its settings.
type SettingRate struct {
	Setting string  `json:"setting"`
	PerS    float64 `json:"per_s"`
}

func (s SettingRate) String() string { return fmt.Sprintf("%s: %.0f", s.Setting, s.PerS) }

// Claims measures how fast events are judged, and how fast the bare store library writes them.
func Claims(ctx context.Context, o ClaimsOptions) (report ClaimsReport, err error) {
	defer report.end(&err)
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(o.IDs, 1, 1)
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
	for _, flag := range []struct {
		name  string
		value int
	}{
		{"n", o.N}, {"batch", o.Batch}, {"goroutines", o.Goroutines}, {"in-flight", o.InFlight}, {"rounds", o.Rounds},
	} {
		if flag.value < 1 {
			return fmt.Errorf("%w: --%s %d: give a number from 1", ErrUsage, flag.name, flag.value)
		}
	}
	if o.Goroutines > maxInFlight/o.InFlight {
		return fmt.Errorf("%w: --goroutines %d with --in-flight %d: give up to %d batches in flight in all", ErrUsage, o.Goroutines, o.InFlight, maxInFlight)
	}
	if o.CacheMiB > maxCacheMiB {
		return fmt.Errorf("%w: --cache-mib %d: give up to %d", ErrUsage, o.CacheMiB, maxCacheMiB)
	}
	if o.MaxFilterBytes > limits.MaxFilterBytes {
		return fmt.Errorf("%w: --max-filter-bytes %d: give up to %d", ErrUsage, o.MaxFilterBytes, limits.MaxFilterBytes)
	}
	if !(o.Dup >= 0 && o.Dup < 1) {
		return fmt.Errorf("%w: --dup %v: give a share from 0 to below 1", ErrUsage, o.Dup)
	}
	return nil
}

// maxInFlight bounds the batches in flight of all callers together: the baseline has a goroutine for
// each.
const maxInFlight = 4096

const maxCacheMiB = 1 << 20

// claiming is a run of Claims.
type claiming struct {
	ClaimsOptions
	judged *judged
	ctx    context.Context
	kind   storeKind
	source traffic.Source
	report *ClaimsReport

	engine              fed         // the sum of all rounds
	baseline            *rawFeeding // the fastest; nil while it is not known
	negatives, falsePos uint64
	diskBytes           uint64
	claimBytes          uint64
	writtenBytes        uint64
	residentBytes       uint64
	cpu                 time.Duration // without the generation of ids
}

// A rawFeeding feeds the bare store with one of its settings.
type rawFeeding struct {
	timing  timing
	setting string
	fed     fed // of all rounds
}

func (c *claiming) feeding(goroutines, inFlight int) *feeding {
	plan := callers.Plan{Callers: goroutines, Batch: c.Batch, InFlight: inFlight}
	return &feeding{source: c.source, n: c.N, plan: plan, repeats: c.Dup, repeated: c.Repeats}
}

// grid returns the settings of the bare store, each with one batch and with all batches in flight.
func (c *claiming) grid() (grid []*rawFeeding) {
	for _, inFlight := range slices.Compact([]int{1, c.InFlight}) {
		for _, s := range c.kind.raw {
			r := &rawFeeding{setting: fmt.Sprintf("%s in-flight=%d", s.name, inFlight)}
			r.timing.take = func(dir string) (float64, error) {
				f, err := c.feedRaw(dir, s.open, c.Goroutines*inFlight)
				r.fed.add(f)
				return f.perS(), err
			}
			grid = append(grid, r)
		}
	}
	return grid
}

// inRounds measures the engine in each round. With the baseline, it also measures the whole grid in
// the first round, and the fastest setting in the other rounds.
func (c *claiming) inRounds(dir string) error {
	ours := &timing{take: c.feedEngine}
	if c.Baseline {
		grid, timings := c.grid(), []*timing{ours}
		for _, r := range grid {
			timings = append(timings, &r.timing)
		}
		if err := inRounds(1, dir, timings...); err != nil {
			return err
		}
		for _, r := range grid {
			c.report.BaselineGrid = append(c.report.BaselineGrid, SettingRate{r.setting, r.timing.perS[0]})
		}
		c.baseline = slices.MaxFunc(grid, func(a, b *rawFeeding) int { return cmp.Compare(a.timing.perS[0], b.timing.perS[0]) })
		c.report.BaselineSetting = c.baseline.setting
		if err := inRounds(c.Rounds-1, dir, &c.baseline.timing, ours); err != nil {
			return err
		}
		for i, perS := range c.baseline.timing.perS {
			c.report.Ratios = append(c.report.Ratios, ours.perS[i]/perS)
		}
	} else if err := inRounds(c.Rounds, dir, ours); err != nil {
		return err
	}
	if c.judged.claimed != c.engine.fresh {
		return fmt.Errorf("%w: of %d distinct events %d got the verdict claimed: report it with the command line", ErrNotHeld, c.engine.fresh, c.judged.claimed)
	}
	return nil
}

// feedEngine opens an engine in dir, feeds it all events, and takes its figures.
func (c *claiming) feedEngine(dir string) (perS float64, err error) {
	before := heapBytes()
	opt := c.source.Options()
	opt.MaxFilterBytes = c.MaxFilterBytes
	e, err := openEngine(c.Store, dir, tuning{cacheBytes: int64(c.CacheMiB) << 20}, opt)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cpu := processTime()
	feeding := c.feeding(c.Goroutines, c.InFlight)
	feeding.progress = func(n uint64) { c.noteSaturation(e, n) }
	f, err := c.judged.all(c.ctx, feeding, e)
	c.engine.add(f)
	if err == nil {
		err = c.takeFigures(e, before)
	}
	c.cpu += processTime() - cpu - f.generating
	if err = errors.Join(err, e.Engine.Close()); err != nil {
		return 0, err
	}
	disk, err := fileBytes(dir, nil)
	c.diskBytes += disk
	return f.perS(), err
}

// noteSaturation is called when n events of a round were judged.
func (c *claiming) noteSaturation(e *opened, n uint64) {
	if at := c.report.FiltersSaturatedAt; at != nil && *at <= n {
		return
	}
	s, err := e.Engine.Stats() // if it fails, so does the call at the end of the round
	if err == nil && s.FiltersSaturated+s.FiltersEvicted > 0 {
		c.report.FiltersSaturatedAt = &n
	}
}

// feedRaw feeds the bare store all events from some goroutines.
func (c *claiming) feedRaw(dir string, open func(dir string) (rawStore, error), goroutines int) (f fed, err error) {
	raw, err := open(dir)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	now := time.Now()
	var pairs []rawPair
	var arena []byte
	f, err = feed(c.ctx, c.feeding(goroutines, 1), func(events []engine.Event) (_ []rawPair, err error) {
		pairs, arena = pairs[:0], arena[:0]
		for i := range events {
			var p rawPair
			if p, arena, err = pairLike(&events[i], now, arena); err != nil {
				return nil, err
			}
			pairs = append(pairs, p)
		}
		return pairs, nil
	}, func(pairs []rawPair) func() error {
		return func() error { return raw.put(pairs) }
	})
	return f, errors.Join(err, raw.Close())
}

// takeFigures takes the figures that need an open engine.
func (c *claiming) takeFigures(e *opened, heapBefore uint64) error {
	c.residentBytes = max(c.residentBytes, residentBytes())
	if after := heapBytes(); after > heapBefore {
		c.report.HeapBytes = max(c.report.HeapBytes, after-heapBefore)
	}
	if err := e.comeToRest(c.ctx); err != nil {
		return err
	}
	stats, err := e.Engine.Stats()
	if err != nil {
		return err
	}
	c.negatives += stats.FilterNegatives
	c.falsePos += stats.FilterFalsePositives
	c.writtenBytes += stats.Store.WrittenBytes
	weeks, err := e.Engine.Weeks(c.ctx)
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

// finish computes the figures from the sums, even after a failed run.
func (c *claiming) finish() {
	r := c.report
	r.Claimed, r.Duplicate, r.Rounds = c.judged.claimed, c.judged.duplicate, c.Rounds
	r.Events, r.Seconds, r.ClaimsPerS = c.engine.n, c.engine.took.Seconds(), c.engine.perS()
	if c.baseline != nil {
		raw := c.baseline.fed.perS()
		r.BaselinePerS, r.Ratio = &raw, over(&r.ClaimsPerS, &raw)
	}
	if c.cpu > 0 && c.engine.n > 0 {
		each := float64(c.cpu.Nanoseconds()) / 1e3 / float64(c.engine.n)
		r.CPUPerClaim = &each
	}
	if c.residentBytes > 0 {
		r.RSSBytes = &c.residentBytes
	}
	if first, last := c.engine.firstTenth.Seconds(), c.engine.lastTenth.Seconds(); last > 0 {
		r.LastOverFirst = over(&first, &last)
	}
	if fresh := float64(c.engine.fresh); fresh > 0 {
		r.BytesPerClaim = float64(c.diskBytes) / fresh
		r.ClaimBytesPerClaim = float64(c.claimBytes) / fresh
		r.WriteAmplification = float64(c.writtenBytes) / float64(max(c.judged.logicalBytes, 1))
	}
	if c.negatives+c.falsePos > 0 {
		r.FilterFPRate = float64(c.falsePos) / float64(c.negatives+c.falsePos)
	}
	micros := func(percentile float64) float64 { return float64(c.judged.calls.ValueAtPercentile(percentile)) / 1e3 }
	r.P50, r.P99, r.P999 = micros(50), micros(99), micros(99.9)
}
