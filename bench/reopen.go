package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

// ReopenOptions configure Reopen.
type ReopenOptions struct {
	Common
	N int `help:"Claims that are acknowledged before the kill." default:"1000000"`
}

// A ReopenReport says how long it took until claims continued after a kill, and what was missing.
type ReopenReport struct {
	// OpenMS is the time to open the store and the engine. FirstVerdictMS also includes the first
	// TryClaim. The files are as the killed process left them, in the page cache as far as
	// possible.
	OpenMS         float64 `json:"open_ms"`
	FirstVerdictMS float64 `json:"first_verdict_ms"`
	// Acked counts the claims that were acknowledged before the kill, and Lost those of them that
	// are absent. All of them were looked up.
	Acked        uint64  `json:"acked"`
	Lost         uint64  `json:"lost"`
	FilterSource string  `json:"filter_source"`
	DiskBytes    uint64  `json:"disk_bytes"`
	ClaimSeconds float64 `json:"claim_seconds"`
	CheckSeconds float64 `json:"check_seconds"`
	Outcome
}

const (
	reopenBatch     = 4096
	reopenWriters   = 2
	maxReopenClaims = 1_000_000_000 // the ledger has a byte for each event
)

// Reopen lets a process claim, kills it, opens its store and looks every acknowledged claim up.
func Reopen(ctx context.Context, o ReopenOptions) (report ReopenReport, err error) {
	defer report.end(&err)
	if o.N < 1 || o.N > maxReopenClaims {
		return report, fmt.Errorf("%w: %d claims: give 1 to %d", ErrUsage, o.N, maxReopenClaims)
	}
	src, err := newSource(traffic.UUIDv4, 1, 2)
	if err != nil {
		return report, err
	}
	slack := o.N/2 + 64*reopenBatch // events claimed between the last of the N and the kill
	log := &traffic.Log{Source: src, N: o.N + slack}
	run := reopening{ReopenOptions: o, run: newClaimRun(&o.Common, log, reopenWriters), report: &report}
	run.run.worker.Batch = reopenBatch
	err = inPlace(o.Dir, func(dir string) error {
		run.run.worker.Dir = dir
		if err := run.claimAndKill(ctx); err != nil {
			return err
		}
		return run.reopen(ctx)
	})
	if err == nil && report.Lost > 0 {
		err = fmt.Errorf("%w: %d of %d acknowledged claims are absent: %s", ErrNotHeld, report.Lost, report.Acked, keepAndReport)
	}
	return report, err
}

// reopening is a run of Kill with one kill and large batches, whose store the parent opens again
// and measures.
type reopening struct {
	ReopenOptions
	run    *claimRun
	report *ReopenReport
}

func (r *reopening) claimAndKill(ctx context.Context) error {
	defer stopwatch(&r.report.ClaimSeconds)()
	plan := runner.Never
	plan.Gate.Here = uint64(r.N)
	_, err := r.run.lives(ctx, []runner.Kill{plan}, func() {}, func() {})
	r.report.Acked = r.run.ledger.acked
	if sent, claimed := r.run.sent, r.run.claimed; err == nil && claimed != sent {
		err = fmt.Errorf("%w: of %d new events %d got the verdict duplicate", ErrNotHeld, sent, sent-claimed)
	}
	return err
}

func (r *reopening) reopen(ctx context.Context) (err error) {
	log, l := &r.run.worker.Log, r.run.ledger
	first, _ := log.Source.Event(1<<50, nil) // an event that was never sent
	start := time.Now()
	e, err := r.run.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Engine.Close()) }()
	r.report.OpenMS = millis(time.Since(start))
	res, err := e.Engine.TryClaim(ctx, first)
	r.report.FirstVerdictMS = millis(time.Since(start))
	if err != nil {
		return err
	}
	if res.Verdict != engine.Claimed {
		return fmt.Errorf("%w: an event that was never sent got the verdict %v", ErrNotHeld, res.Verdict)
	}
	stats, err := e.Engine.Stats()
	if err != nil {
		return err
	}
	r.report.FilterSource, r.report.DiskBytes = stats.FilterSource, stats.Store.DiskBytes
	defer stopwatch(&r.report.CheckSeconds)()
	l.must = r.run.below(r.run.worker.From)
	err = l.check(ctx, e)
	r.report.Lost = l.lost
	return err
}
