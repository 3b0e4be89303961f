package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/callers"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/internal/wait"
)

// DropOptions configure Drop.
type DropOptions struct {
	Common
	N      int `help:"Claims, spread evenly over weeks and scopes as they come." default:"1000000"`
	Weeks  int `help:"Weeks, ending with the current one." default:"4"`
	Scopes int `help:"Scopes. With many of them, each table holds several weeks." default:"1"`
}

const (
	reclaimLimit = 3 * time.Minute // the time for which Drop waits until the space is free
	enoughShare  = 0.95            // of the expected share
	loadWarmUp   = time.Second
	fillBatch    = 1000

	// leastDropped is the number of bytes in the dropped week below which a missing share has no
	// meaning.
	leastDropped = 4 << 20
)

// A DropReport is the result of dropping the oldest week while claims continued.
type DropReport struct {
	// DropMS is the time of DropWeek: on its return the claims are durably removed.
	DropMS float64 `json:"drop_ms"`

	// BytesBefore is the size of the claims on disk before the drop, when the store was idle: the
	// store's estimate over all weeks, but at most the size of the files. BytesAfter is BytesBefore
	// less the freed bytes, which are the smaller of two values. The first is the decrease of the
	// files with claims (plus the claims made meanwhile, by the store's estimate). The second is
	// the dropped week's part of BytesBefore, as far as the store's estimate for its ranges has
	// fallen. The first value alone would also count other bytes that compactions free, above all
	// the trimmed journal. The second alone would trust the store.
	BytesBefore uint64 `json:"bytes_before"`
	BytesAfter  uint64 `json:"bytes_after"`
	// FilesBefore and FilesAfter are the sizes of the files with claims, including their other
	// contents.
	FilesBefore uint64 `json:"claim_files_before"`
	FilesAfter  uint64 `json:"claim_files_after"`

	// ExpectedShare is the share of the claims that were in the dropped week. ReclaimedShare is the
	// share of BytesBefore that was freed. ReclaimS is the time from the start of the drop until 95
	// % of the expected share were free; -1 if they were not freed.
	ExpectedShare  float64 `json:"expected_share"`
	ReclaimedShare float64 `json:"reclaimed_share"`
	ReclaimS       float64 `json:"reclaim_s"`

	// LateVerdict is the verdict on a new event of the dropped week, and on a repeat of a claimed
	// one.
	LateVerdict string `json:"late_verdict"`

	// ClaimsDuring counts the single claims that were made from the drop until the space was free.
	// MaxStallMS is the longest of them, and MaxStallBeforeMS the longest claim in one second of
	// the same load before the drop.
	ClaimsDuring     uint64  `json:"claims_during"`
	MaxStallMS       float64 `json:"max_stall_ms"`
	MaxStallBeforeMS float64 `json:"max_stall_before_ms"`

	Claims      uint64  `json:"claims"`
	Buckets     int     `json:"buckets_dropped"`
	FillSeconds float64 `json:"fill_seconds"`
	Note        string  `json:"note,omitempty"`
	Outcome
}

// Drop fills a store, drops its oldest week, and measures how its space is freed while claims
// continue.
func Drop(ctx context.Context, o DropOptions) (report DropReport, err error) {
	defer report.end(&err)
	report.ReclaimS = -1
	if o.N < 1 || o.Weeks < 2 || o.Scopes < 1 {
		return report, fmt.Errorf("%w: %d claims, %d weeks, %d scopes: give a claim or more, 2 weeks or more, and a scope or more",
			ErrUsage, o.N, o.Weeks, o.Scopes)
	}
	src, err := newSource(traffic.UUIDv4, o.Scopes, o.Weeks)
	if err != nil {
		return report, err
	}
	err = inPlace(o.Dir, func(dir string) error {
		run := dropping{DropOptions: o, ctx: ctx, source: src, dir: dir, report: &report}
		if err := run.fill(); err != nil {
			return err
		}
		if err := run.measure(); err != nil {
			return err
		}
		return run.verdict()
	})
	return report, err
}

// dropping is a run of Drop.
type dropping struct {
	DropOptions
	ctx    context.Context
	source traffic.Source
	dir    string
	report *DropReport

	e      *opened
	weeks  []engine.WeekInfo // before the drop
	loaded atomic.Uint64     // events that underLoad has claimed
}

// fill claims N events. It closes the store and opens it again, twice, so that the measurement
// starts in the state of a running store: the snapshots of the filters have trimmed the journal,
// and all claims are in files.
func (d *dropping) fill() error {
	start := time.Now()
	o := &feeding{source: d.source, n: d.N, plan: callers.Plan{Callers: 1, Batch: fillBatch}}
	j := newJudged()
	for range 3 {
		e, err := openEngine(d.Store, d.dir, tuning{}, d.source.Options())
		if err != nil {
			return err
		}
		if j.claimed == 0 {
			_, err = j.all(d.ctx, o, e)
		} else {
			_, err = e.Engine.TryClaim(d.ctx, d.during(j.claimed, 1<<40)) // a further batch makes Close write a snapshot
		}
		if err = errors.Join(err, e.Engine.Close()); err != nil {
			return err
		}
	}
	d.report.Claims = j.claimed
	d.report.FillSeconds = time.Since(start).Seconds()
	return nil
}

// during returns an event to claim during the drop, in the current week and in a separate scope.
func (d *dropping) during(caller uint64, n uint64) engine.Event {
	ev, _ := d.source.Event(1<<60|caller<<45|n, nil)
	ev.Scope, ev.Time = duringScope, d.source.Latest.Start()
	return ev
}

const duringScope = "during"

func (d *dropping) measure() (err error) {
	if d.e, err = openEngine(d.Store, d.dir, tuning{}, d.source.Options()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.e.Engine.Close()) }()
	if err := d.before(); err != nil {
		return err
	}
	_, stall, err := d.underLoad(func() error { return wait.For(d.ctx, loadWarmUp) })
	d.report.MaxStallBeforeMS = millis(stall)
	if err != nil {
		return err
	}
	d.report.ClaimsDuring, stall, err = d.underLoad(d.dropAndWatch)
	d.report.MaxStallMS = millis(stall)
	if err != nil {
		return err
	}
	return d.late()
}

// before reads the sizes of an idle store.
func (d *dropping) before() (err error) {
	if err := d.e.comeToRest(d.ctx); err != nil {
		return err
	}
	if d.weeks, err = d.e.Engine.Weeks(d.ctx); err != nil {
		return err
	}
	if len(d.weeks) != d.Weeks {
		return fmt.Errorf("%d claims fell into %d of %d weeks: give more claims", d.N, len(d.weeks), d.Weeks)
	}
	var all, estimate uint64 // for small ranges the estimate is too high
	for _, w := range d.weeks {
		all += w.Claims
		estimate += w.Bytes
	}
	d.report.ExpectedShare = float64(d.weeks[0].Claims) / float64(all)
	d.report.FilesBefore, err = d.e.claimFileBytes()
	d.report.BytesBefore = min(estimate, d.report.FilesBefore)
	return err
}

// dropAndWatch drops the oldest week and reads the sizes until the space is free and no more
// is freed.
func (d *dropping) dropAndWatch() error {
	start := time.Now()
	r, err := d.e.Engine.Retention().DropWeek(d.ctx, d.weeks[0].Week)
	if err != nil {
		return err
	}
	d.report.DropMS, d.report.Buckets = millis(time.Since(start)), r.Buckets
	reclaimed := make(chan error, 1)
	go func() { reclaimed <- d.e.Engine.Retention().Reclaimed(d.ctx) }()
	for ended := false; !ended; {
		select {
		case err := <-reclaimed:
			if err != nil {
				return err
			}
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
		took := time.Since(start)
		if err := d.after(); err != nil {
			return err
		}
		if d.report.ReclaimS < 0 && d.report.ReclaimedShare >= enoughShare*d.report.ExpectedShare {
			d.report.ReclaimS = took.Seconds()
		}
		ended = ended || took > reclaimLimit
	}
	return nil
}

// after reads the current sizes.
func (d *dropping) after() (err error) {
	r := d.report
	if r.FilesAfter, err = d.e.claimFileBytes(); err != nil {
		return err
	}
	made, err := d.e.store.BucketBytes(storage.Bucket{Scope: duringScope, Week: d.source.Latest})
	if err != nil {
		return err
	}
	var held uint64 // bytes that the dropped week still holds
	for _, scope := range d.weeks[0].Scopes {
		n, err := d.e.store.BucketBytes(storage.Bucket{Scope: scope.Scope, Week: d.weeks[0].Week})
		if err != nil {
			return err
		}
		held += n
	}
	freed := float64(less(d.weeks[0].Bytes, held)) / float64(max(d.weeks[0].Bytes, 1))
	dropped := r.ExpectedShare * float64(r.BytesBefore) // its claims have the same size as the others
	back := min(less(r.FilesBefore+made, r.FilesAfter), uint64(freed*dropped))
	r.BytesAfter = r.BytesBefore - back
	if r.BytesBefore > 0 {
		r.ReclaimedShare = float64(back) / float64(r.BytesBefore)
	}
	return nil
}

// late claims events of the dropped week: a new one, and one that fill has claimed.
func (d *dropping) late() error {
	week := d.weeks[0].Week
	late := d.during(1, 1<<41)
	late.Time = week.Start()
	asked := []engine.Event{late}
	for n := range uint64(d.N) {
		if ev, _ := d.source.Event(n, nil); week.Contains(ev.Time) {
			asked = append(asked, ev)
			break
		}
	}
	for _, ev := range asked {
		res, err := d.e.Engine.TryClaim(d.ctx, ev)
		if err != nil {
			return err
		}
		if d.report.LateVerdict = res.Verdict.String(); res.Verdict != engine.TooOld {
			break
		}
	}
	return nil
}

// verdict returns the violations.
func (d *dropping) verdict() error {
	r := d.report
	switch {
	case r.LateVerdict != engine.TooOld.String():
		return fmt.Errorf("%w: a late event of the dropped week got the verdict %s: report it with the command line", ErrNotHeld, r.LateVerdict)
	case r.ReclaimS >= 0:
		return nil
	case d.Store == Bolt:
		r.Note = "a bolt file does not shrink: the pages of the dropped week are used again; a backup is a copy without them"
		return nil
	case uint64(r.ExpectedShare*float64(r.BytesBefore)) < leastDropped:
		r.Note = fmt.Sprintf("too few claims to judge what came back: sizes are known to a block or a file; give claims of %d MiB a week", leastDropped>>20)
		return nil
	}
	return fmt.Errorf("%w: %.1f %% of the space is free, %.1f %% were expected: report it with the command line",
		ErrNotHeld, 100*r.ReclaimedShare, 100*r.ExpectedShare)
}

const (
	loadCallers = 2
	loadBreath  = time.Millisecond
)

// underLoad calls do while a few goroutines claim one event after the other, with a short pause
// between two claims. It returns how many they claimed, and the maximum time of a claim.
func (d *dropping) underLoad(do func() error) (claims uint64, longest time.Duration, err error) {
	ctx, stop := context.WithCancel(d.ctx)
	before := d.loaded.Load()
	var stalls [loadCallers]time.Duration
	err = callers.Together(loadCallers+1, func(g int) error {
		if g == loadCallers {
			defer stop()
			return do()
		}
		for ctx.Err() == nil {
			ev := d.during(0, d.loaded.Add(1))
			start := time.Now()
			res, err := d.e.Engine.TryClaim(context.WithoutCancel(ctx), ev)
			stalls[g] = max(stalls[g], time.Since(start))
			if err == nil && res.Verdict != engine.Claimed {
				err = fmt.Errorf("a new event got the verdict %v during the drop", res.Verdict)
			}
			if err != nil {
				return err
			}
			_ = wait.For(ctx, loadBreath)
		}
		return nil
	})
	return d.loaded.Load() - before, slices.Max(stalls[:]), err
}
