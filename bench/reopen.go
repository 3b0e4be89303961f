package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// ReopenOptions configure Reopen.
type ReopenOptions struct {
	Common
	N    int    `help:"Claims that are acknowledged before the kill." default:"1000000"`
	Seed uint64 `help:"Seed of the ids." default:"1"`
}

// A ReopenReport says how long it took until claims continued after a kill, and what was missing.
type ReopenReport struct {
	// OpenMS is the time from before the store was opened until the engine was open; FirstVerdictMS
	// until the first TryClaim returned. The files are as the killed process left them, in the page
	// cache as far as possible.
	OpenMS         float64 `json:"open_ms"`
	FirstVerdictMS float64 `json:"first_verdict_ms"`
	// Acked claims had been acknowledged before the kill; Lost are those of them that are absent.
	// All were looked up.
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
	maxReopenClaims = 1_000_000_000 // the books have a byte for each
)

// Reopen lets a process claim, kills it, opens its store and looks every acknowledged claim up.
func Reopen(ctx context.Context, o ReopenOptions) (report ReopenReport, err error) {
	defer report.end(&err)
	if o.N < 1 || o.N > maxReopenClaims {
		return report, fmt.Errorf("%w: %d claims: give 1 to %d", ErrUsage, o.N, maxReopenClaims)
	}
	src, err := newSource(o.Seed, UUIDv4, 1, 2)
	if err != nil {
		return report, err
	}
	slack := o.N/2 + 64*reopenBatch // claimed between the last of the N and the kill
	log := topicLog{source: src, N: o.N + slack}
	run := reopening{ReopenOptions: o, books: newBooks(&log, reopenWriters), report: &report}
	err = inPlace(o.Dir, func(dir string) error {
		run.dir = dir
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
	dir    string
	books  *books
	report *ReopenReport
}

func (r *reopening) claimAndKill(ctx context.Context) error {
	start := time.Now()
	plan := never
	plan.Here = uint64(r.N)
	l := lives{kills: []kill{plan}, end: true}
	l.worker = func(k kill) worker {
		return &claimWorker{
			Store: r.Store, Dir: r.dir, Mode: Own, Log: *r.books.log, From: r.books.told, Batch: reopenBatch, gateOrder: k.gateOrder,
		}
	}
	l.hear = r.books.hear()
	l.hear["from"] = hears(func(uint64) error { return nil })
	l.hear["ack"] = hears(func(ack reached) error {
		r.Progress.tell("claim", r.books.acked, uint64(r.N))
		return r.books.acknowledged(ack)
	})
	err := l.run(ctx)
	r.report.Acked, r.report.ClaimSeconds = r.books.acked, time.Since(start).Seconds()
	if err == nil && r.books.claimed != r.books.sent {
		err = fmt.Errorf("%w: of %d new events %d got the verdict duplicate", ErrNotHeld, r.books.sent, r.books.sent-r.books.claimed)
	}
	return err
}

func (r *reopening) reopen(ctx context.Context) (err error) {
	b := r.books
	first, _ := b.log.source.event(1<<50, nil) // one that was never sent
	start := time.Now()
	e, err := openEngine(r.Store, r.dir, tuning{}, b.log.options())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	r.report.OpenMS = millis(time.Since(start))
	res, err := e.TryClaim(ctx, first)
	r.report.FirstVerdictMS = millis(time.Since(start))
	if err != nil {
		return err
	}
	if res.Verdict != engine.Claimed {
		return fmt.Errorf("%w: an event that was never sent got the verdict %v", ErrNotHeld, res.Verdict)
	}
	stats, err := e.Stats()
	if err != nil {
		return err
	}
	r.report.FilterSource, r.report.DiskBytes = stats.FilterSource, stats.Store.DiskBytes
	start = time.Now()
	l := ledger{e: e, log: b.log, limit: uint64(b.log.N), must: b.below(b.told), progress: r.Progress}
	err = l.check(ctx)
	r.report.Lost, r.report.CheckSeconds = l.lost, time.Since(start).Seconds()
	return err
}
