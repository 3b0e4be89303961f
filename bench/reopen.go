package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// ReopenOptions configure Reopen.
type ReopenOptions struct {
	N        int // claims that are acknowledged before the kill; 0 = DefaultReopenClaims
	Store    StoreName
	Dir      string // of the store, which must be new; "" = a temporary one, which is removed
	Seed     uint64
	Progress Progress
}

// DefaultReopenClaims is the number of claims of a run.
const DefaultReopenClaims = 1_000_000

// A ReopenReport says how long it took to get back to work after a kill, and what was missing.
type ReopenReport struct {
	// OpenMS is from before the store was opened until the engine was; FirstVerdictMS until the
	// first TryClaim was answered. The files are as the killed process left them, in the memory of
	// the operating system as far as it goes.
	OpenMS         float64 `json:"open_ms"`
	FirstVerdictMS float64 `json:"first_verdict_ms"`
	// Acked claims had been acknowledged before the kill; Lost are those of them that are absent.
	// All were looked up.
	Acked        uint64              `json:"acked"`
	Lost         uint64              `json:"lost"`
	FilterSource engine.FilterSource `json:"filter_source"`
	DiskBytes    uint64              `json:"disk_bytes"`
	ClaimSeconds float64             `json:"claim_seconds"`
	CheckSeconds float64             `json:"check_seconds"`
	Outcome
}

// A reopenOrder is what the process that claims is told. It says "ack b" for each batch b that was
// claimed.
type reopenOrder struct {
	Store  StoreName
	Dir    string
	Source source
}

const (
	reopenBatch   = 4096
	reopenWriters = 2
)

// reopenChild claims until it is killed.
func reopenChild(order []byte, say *voice) error {
	var o reopenOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	o.Source.nameScopes()
	e, err := openEngine(o.Store, o.Dir, false, o.Source.options())
	if err != nil {
		return err
	}
	var next atomic.Uint64
	errs := make(chan error)
	for range reopenWriters {
		go func() {
			for {
				b := next.Add(1) - 1
				if err := o.claimBatch(e, b); err != nil {
					errs <- err
					return
				}
				say.line("ack %d", b)
			}
		}()
	}
	return <-errs
}

func (o *reopenOrder) claimBatch(e *opened, b uint64) error {
	events := o.Source.batch(b*reopenBatch, reopenBatch)
	results, err := e.TryClaimBatch(context.Background(), events)
	if err != nil {
		return err
	}
	for i := range results {
		if v := results[i].Verdict; v != engine.Claimed {
			return errors.Join(fmt.Errorf("a new event was told %v", v), results[i].Err)
		}
	}
	return nil
}

// batch returns n events from a number on.
func (s *source) batch(from, n uint64) []engine.Event {
	events := make([]engine.Event, n)
	arena := make([]byte, 0, 48*n)
	for i := range events {
		events[i], arena = s.event(from+uint64(i), arena)
	}
	return events
}

// Reopen lets a process claim, kills it, opens its store and looks every acknowledged claim up.
func Reopen(ctx context.Context, o ReopenOptions) (report ReopenReport, err error) {
	defer report.end(&err)
	if o.N == 0 {
		o.N = DefaultReopenClaims
	}
	if o.N < 0 {
		return report, fmt.Errorf("%w: %d claims: give a number from 1", ErrUsage, o.N)
	}
	src, err := newSource(o.Seed, UUIDv4, 1, 2)
	if err != nil {
		return report, err
	}
	place, err := newPlace(o.Dir)
	if err != nil {
		return report, err
	}
	defer place.remove(&err)
	run := reopening{ReopenOptions: o, order: reopenOrder{o.Store, place.Dir, src}, report: &report}
	if err := run.claimAndKill(ctx); err != nil {
		return report, err
	}
	if err := run.reopen(ctx); err != nil {
		return report, err
	}
	if report.Lost > 0 {
		return report, fmt.Errorf("%w: %d of %d acknowledged claims are absent: run again with --dir to keep the store, and report it",
			ErrNotHeld, report.Lost, report.Acked)
	}
	return report, nil
}

type reopening struct {
	ReopenOptions
	order  reopenOrder
	report *ReopenReport
	acked  []uint64 // batches
}

func (r *reopening) claimAndKill(ctx context.Context) error {
	start := time.Now()
	_, err := live(ctx, "reopen", r.order, 0, func(c *child, word, rest string) (bool, error) {
		b, err := strconv.ParseUint(rest, 10, 64)
		if word != "ack" || err != nil {
			return false, fmt.Errorf("the process that claims said %q %q", word, rest)
		}
		r.acked = append(r.acked, b)
		r.report.Acked += reopenBatch
		r.Progress.tell("claim", r.report.Acked, uint64(r.N))
		if r.report.Acked >= uint64(r.N) {
			c.kill()
		}
		return true, nil
	})
	r.report.ClaimSeconds = time.Since(start).Seconds()
	return err
}

func (r *reopening) reopen(ctx context.Context) (err error) {
	first := r.order.Source.batch(1<<50, 1)[0] // one that was never sent
	start := time.Now()
	e, err := openEngine(r.Store, r.order.Dir, false, r.order.Source.options())
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
		return fmt.Errorf("%w: an event that was never sent is told %v", ErrNotHeld, res.Verdict)
	}
	stats, err := e.Stats()
	if err != nil {
		return err
	}
	r.report.FilterSource, r.report.DiskBytes = stats.FilterSource, stats.Store.DiskBytes
	start = time.Now()
	err = r.lookAll(ctx, e)
	r.report.CheckSeconds = time.Since(start).Seconds()
	return err
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// lookAll looks every acknowledged claim up, in portions whose keys are in order, which spares the
// store reads.
func (r *reopening) lookAll(ctx context.Context, e *opened) error {
	const lookers, portion = 2, 64 // batches
	var lost, done atomic.Uint64
	errs := make([]error, lookers)
	var all sync.WaitGroup
	for w := range lookers {
		all.Go(func() {
			for at := w * portion; at < len(r.acked) && errs[w] == nil; at += lookers * portion {
				batches := r.acked[at:min(at+portion, len(r.acked))]
				n, err := r.look(ctx, e, batches)
				lost.Add(n)
				errs[w] = err
				if done.Add(uint64(len(batches))); w == 0 {
					r.Progress.tell("look all up", done.Load()*reopenBatch, r.report.Acked)
				}
			}
		})
	}
	all.Wait()
	r.report.Lost = lost.Load()
	return several(errs...)
}

func (r *reopening) look(ctx context.Context, e *opened, batches []uint64) (lost uint64, err error) {
	var events []engine.Event
	for _, b := range batches {
		events = append(events, r.order.Source.batch(b*reopenBatch, reopenBatch)...)
	}
	slices.SortFunc(events, func(a, b engine.Event) int {
		if c := a.Time.Compare(b.Time); c != 0 && a.Time.Sub(b.Time).Abs() > time.Hour {
			return c // other weeks
		}
		return bytes.Compare(a.ID, b.ID)
	})
	for i := range events {
		_, found, err := e.Lookup(ctx, events[i].Scope, events[i].ID, events[i].Time)
		if err != nil {
			return lost, err
		}
		if !found {
			lost++
		}
	}
	return lost, nil
}
