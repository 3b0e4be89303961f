package bench

import (
	"context"
	"fmt"
	"os"
	"time"
)

// ClaimsOptions configure Claims.
type ClaimsOptions struct {
	Store      StoreName `help:"${store}" enum:"pebble,bolt" default:"pebble"`
	Dir        string    `help:"New directory to make the stores in; they are removed. Without it: a temporary one." type:"dir"`
	N          int       `help:"Events to judge, repeats included." default:"1000000" placeholder:"N"`
	Dup        float64   `help:"Share of the events that repeat an earlier id, from 0 to below 1: half of them one of the last 10,000 ids, half any of all history." default:"0.05" placeholder:"SHARE"`
	Batch      int       `help:"Events judged by one call." default:"1000" placeholder:"N"`
	IDs        IDKind    `help:"Form of the ids: ${enum}." enum:"uuidv4,uuidv7,text" default:"uuidv4" name:"ids"`
	Scopes     int       `help:"Scopes that the events are spread over." default:"1" placeholder:"N"`
	Weeks      int       `help:"Weeks that the events are spread over, ending with the current one." default:"1" placeholder:"N"`
	Baseline   bool      `help:"Feed the bare store library as well: the same keys, and values of the same size, written blindly in durable batches of the same size by as many goroutines, with the settings that our store uses."`
	Goroutines int       `help:"Callers at once, on both sides: 1 compares one consumer's loop with one blind writer." default:"1" placeholder:"N"`
	Rounds     int       `help:"Repeat everything on new stores, engine and baseline first in turn. 0: two rounds with --baseline, one without." default:"0" placeholder:"N"`
	Seed       uint64    `help:"Seed of the ids." default:"1"`
	Progress   Progress  `kong:"-"`
	// Profile, if not nil, is called before the engine is fed, and what it returns after it.
	Profile func() (stop func() error, err error) `kong:"-"`
}

// A ClaimsReport says how fast events were judged, and what that cost. Rates count all events,
// repeats included, over the time in which the engine or the bare store had them: making ids takes
// no part in it. Null is what was not asked for.
type ClaimsReport struct {
	ClaimsPerS float64 `json:"claims_per_s"`
	// BaselinePerS is the rate of the same keys and values through the bare store library, written
	// blindly, in durable batches of the same size, by as many goroutines. Ratio is ClaimsPerS over
	// it; Ratios are those of the rounds.
	BaselinePerS *float64  `json:"baseline_per_s"`
	Ratio        *float64  `json:"ratio"`
	Ratios       []float64 `json:"ratios,omitempty"`

	// BytesPerClaim is what all files of the store occupy when it is closed, for each claim;
	// ClaimBytesPerClaim what the claims alone occupy, as the store estimates it.
	BytesPerClaim      float64 `json:"bytes_per_claim"`
	ClaimBytesPerClaim float64 `json:"claim_bytes_per_claim"`
	// WriteAmplification is all bytes written to files, log included, over the bytes of the claims'
	// keys and records. It is taken when the store has come to rest.
	WriteAmplification float64 `json:"write_amplification"`
	// HeapBytes is by how much the heap grew, after a collection, from before the engine was opened
	// until it had seen everything: filters, cache and whatever the store keeps on it.
	HeapBytes uint64 `json:"heap_bytes"`
	// FilterFPRate is the share of the new events that the filter held for possible repeats.
	FilterFPRate float64 `json:"filter_fp_rate"`

	// Percentiles of the time that one call takes.
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`

	Events    uint64  `json:"events"`
	Claimed   uint64  `json:"claimed"`
	Duplicate uint64  `json:"duplicate"`
	Seconds   float64 `json:"seconds"`
	// Round by round: what went first.
	First []string `json:"first,omitempty"`
	Outcome
}

// Claims measures how fast events are judged, and how fast the bare store library would have
// written them down.
func Claims(ctx context.Context, o ClaimsOptions) (report ClaimsReport, err error) {
	defer report.end(&err)
	if err := o.complete(); err != nil {
		return report, err
	}
	src, err := newSource(o.Seed, o.IDs, o.Scopes, o.Weeks)
	if err != nil {
		return report, err
	}
	kind, err := o.Store.kind()
	if err != nil {
		return report, err
	}
	place, err := newPlace(o.Dir)
	if err != nil {
		return report, err
	}
	defer place.remove(&err)
	run := claiming{ClaimsOptions: o, ctx: ctx, kind: kind, source: src, dir: place.Dir, report: &report, calls: newLatency()}
	err = run.all()
	run.finish()
	return report, err
}

func (o *ClaimsOptions) complete() error {
	setDefaults(o)
	if o.Rounds == 0 {
		o.Rounds = 1
		if o.Baseline {
			o.Rounds = 2
		}
	}
	if o.N < 0 || o.Batch < 0 || o.Goroutines < 0 || o.Scopes < 0 || o.Weeks < 0 || o.Rounds < 0 || o.Goroutines > maxGoroutines {
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
	ctx    context.Context
	kind   storeKind
	source source
	dir    string
	report *ClaimsReport

	calls               latency
	engineTime, rawTime time.Duration
	engineN, rawN       uint64
	negatives, falsePos uint64
	fresh               uint64 // distinct events of all rounds
	diskBytes           uint64
	claimBytes          uint64
	writtenBytes        uint64
	logicalBytes        uint64
}

func (c *claiming) all() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of the stores: %w", err)
	}
	ours, raw := &timing{take: c.feedEngine}, &timing{take: c.feedRaw}
	timings := []*timing{ours, raw}
	if !c.Baseline {
		timings = timings[:1]
	}
	if err := inRounds(c.Rounds, c.dir, timings...); err != nil {
		return err
	}
	for i := range raw.perS {
		c.report.First = append(c.report.First, []string{"engine", "baseline"}[i%2])
		c.report.Ratios = append(c.report.Ratios, ours.perS[i]/raw.perS[i])
	}
	if c.report.Claimed != c.fresh {
		return fmt.Errorf("%w: of %d distinct events %d got the verdict claimed: report it with the command line", ErrNotHeld, c.fresh, c.report.Claimed)
	}
	return nil
}

func rate(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// finish makes figures of what was summed up, also of a run that failed.
func (c *claiming) finish() {
	r := c.report
	r.Events = c.engineN
	r.Seconds = c.engineTime.Seconds()
	r.ClaimsPerS = rate(c.engineN, c.engineTime)
	if c.rawN > 0 {
		raw := rate(c.rawN, c.rawTime)
		ratio := r.ClaimsPerS / raw
		r.BaselinePerS, r.Ratio = &raw, &ratio
	}
	if c.fresh > 0 {
		r.BytesPerClaim = float64(c.diskBytes) / float64(c.fresh)
		r.ClaimBytesPerClaim = float64(c.claimBytes) / float64(c.fresh)
		r.WriteAmplification = float64(c.writtenBytes) / float64(max(c.logicalBytes, 1))
	}
	if c.negatives+c.falsePos > 0 {
		r.FilterFPRate = float64(c.falsePos) / float64(c.negatives+c.falsePos)
	}
	r.P50, r.P99, r.P999 = c.calls.micros(50), c.calls.micros(99), c.calls.micros(99.9)
}
