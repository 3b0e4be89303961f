package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/bench/internal/runner"
	"github.com/hapax-dev/hapax/bench/internal/traffic"
	"github.com/hapax-dev/hapax/engine"
)

// KillOptions configure Kill.
type KillOptions struct {
	Common
	Kills int  `help:"How often the process is killed." default:"20"`
	Mode  Mode `help:"own: each claim commits by itself. work: it commits with a counter and the offset." enum:"own,work" default:"own"`

	fault fault
	brief bool // kill after a tenth of the usual number of verdicts
}

// A KillReport has the parent's results.
type KillReport struct {
	Kills int `json:"kills"`
	// Acked counts the distinct events whose verdicts were reported before a kill.
	Acked uint64 `json:"acked"`
	// Lost counts the events that are absent after the last kill although they were acknowledged or
	// are before a committed offset.
	Lost uint64 `json:"lost"`
	// ClaimedTwice counts the events that got the verdict claimed more than once. They include an
	// event that a kill has undone and that was sent again.
	ClaimedTwice uint64 `json:"claimed_twice"`
	// StateMismatch counts disagreements of claims, counters and offsets after the last kill.
	StateMismatch uint64 `json:"state_mismatch"`
	// Sent counts the reported verdicts, repeats included. Early counts the kills before the store
	// was open.
	Sent    uint64  `json:"sent"`
	Early   int     `json:"kills_before_ready"`
	Seconds float64 `json:"seconds"`
	Outcome
}

// Kill lets a process claim, kills it at random points and restarts it on the same store, the
// requested number of times. Then it opens the store, checks all of it, claims all events once
// more, and verifies the store.
func Kill(ctx context.Context, o KillOptions) (report KillReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if o.Kills < 1 || o.Kills > maxKills {
		return report, fmt.Errorf("%w: %d kills: give 1 to %d", ErrUsage, o.Kills, maxKills)
	}
	src, err := newSource(traffic.UUIDv4, 2, 2)
	if err != nil {
		return report, err
	}
	log := &traffic.Log{Source: src, N: min((o.Kills+1)*killEvents, mostKillEvents), Dup: killRepeats, Recent: killRecent}
	run := killing{KillOptions: o, run: newClaimRun(&o.Common, log, killParts), report: &report}
	if err := inPlace(o.Dir, func(dir string) error { run.run.worker.Dir = dir; return run.all(ctx) }); err != nil {
		return report, err
	}
	return report, report.broken(run.run.ledger.first)
}

const (
	killParts      = 4      // partitions, each with a separate consumer
	killEvents     = 20_000 // events of the log for each process
	mostKillEvents = 4_000_000
	killRepeats    = 0.2
	killRecent     = 100 * killParts
	maxKills       = 100_000
)

func (r *KillReport) broken(first string) error {
	if r.Lost+r.ClaimedTwice+r.StateMismatch == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d lost, %d claimed twice, %d state mismatches (first %s): %s",
		ErrNotHeld, r.Lost, r.ClaimedTwice, r.StateMismatch, first, keepAndReport)
}

// killing is a run of Kill.
type killing struct {
	KillOptions
	run    *claimRun
	report *KillReport
}

func (k *killing) all(ctx context.Context) error {
	r := k.report
	kills := make([]runner.Kill, k.Kills)
	for i := range kills {
		kills[i] = k.draw(i)
	}
	k.run.worker.Mode, k.run.worker.Fault = k.Mode, k.fault
	ready := true
	killed, err := k.run.lives(ctx, kills, func() {
		if !ready {
			r.Early++
		}
		ready = false
	}, func() { ready = true })
	r.Kills, r.Acked, r.Sent = killed, k.run.ledger.acked, k.run.sent
	_, r.ClaimedTwice = k.run.ledger.doneTold()
	if err != nil {
		return err
	}
	return k.check(ctx)
}

// checkAhead is how many events of a partition after the last one are checked: none of them may be
// partially applied.
const checkAhead = 2 * maxChunk

// check opens the store of the last process and compares it with the parent's records.
func (k *killing) check(ctx context.Context) (err error) {
	run, l, r := k.run, k.run.ledger, k.report
	e, err := run.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Engine.Close()) }()
	ends := slices.Clone(run.worker.From)
	if k.Mode == Work {
		l.state = &expected{topic: traffic.Topic, group: killGroup, ends: run.worker.From, open: true}
		for p := range ends {
			o, _, err := e.Engine.Admin().Offset(ctx, killPosition(p))
			if err != nil {
				return err
			}
			ends[p] = max(ends[p], uint64(o.Next))
		}
	}
	l.must = run.below(ends)
	l.limit = min((slices.Max(ends)+checkAhead)*killParts, l.limit)
	if err := l.check(ctx, e); err != nil {
		return err
	}
	if twice := atLeast(l.counts, 2); twice > 0 {
		l.wrong("%d events are counted twice", twice)
	}
	r.Lost, r.StateMismatch = l.lost, l.mismatches
	again, err := claimAgain(ctx, e, &run.deal, ends)
	if r.ClaimedTwice += less(again, l.lost); err != nil { // a lost event is claimed as new
		return err
	}
	report, err := e.Engine.Admin().Verify(ctx)
	if err == nil && report.Total > 0 {
		err = fmt.Errorf("%w: %d problems in the store, the first is: %s", ErrNotHeld, report.Total, report.Problems[0])
	}
	return err
}

// claimAgain claims the events before the ends of the partitions once more, and returns how many of
// them got the verdict claimed.
func claimAgain(ctx context.Context, e *opened, deal *traffic.Deal, ends []uint64) (claimed uint64, err error) {
	for p, end := range ends {
		for at := uint64(0); at < end; at += fillBatch {
			_, events := deal.Events(p, at, min(fillBatch, end-at))
			results, err := e.Engine.TryClaimBatch(ctx, events)
			if err == nil {
				err = decided(results)
			}
			if err != nil {
				return claimed, err
			}
			for i := range results {
				if results[i].Verdict == engine.Claimed {
					claimed++
				}
			}
		}
	}
	return claimed, nil
}

// draw plans the kill of a process: either a time after its start, perhaps before its store is
// open, or a time after a number of verdicts, where 0 means right after the store was checked.
// Every other process claims for a while.
func (k *killing) draw(life int) runner.Kill {
	plan := runner.Never
	switch draw := rand.IntN(4); {
	case life%2 == 0 || draw == 0:
		if plan.Gate.Here, plan.After = 600+rand.Uint64N(3000), rand.N(5*time.Millisecond); k.brief {
			plan.Gate.Here /= 10
		}
	case draw == 1:
		plan.Gate.Here, plan.After = 0, rand.N(10*time.Millisecond)
	default:
		plan.Early = 1 + rand.N(150*time.Millisecond)
	}
	return plan
}

// A claimRun is a run of claim workers, one after the other on the same store, with the parent's
// record of their reports.
type claimRun struct {
	worker claimWorker // without its gate. All events of a partition before its From were acknowledged
	deal   traffic.Deal
	ledger *ledger

	sent, claimed uint64 // verdicts
}

func newClaimRun(o *Common, log *traffic.Log, parts int) *claimRun {
	return &claimRun{worker: claimWorker{Store: o.Store, Log: *log, From: make([]uint64, parts)}, deal: log.Deal(parts), ledger: newLedger(log)}
}

func (r *claimRun) open() (*opened, error) {
	return openEngine(r.worker.Store, r.worker.Dir, tuning{}, r.worker.Log.Source.Options())
}

// lives runs and kills the workers. It calls begins before each worker, and ready when the worker's
// store is open.
func (r *claimRun) lives(ctx context.Context, kills []runner.Kill, begins, ready func()) (killed int, err error) {
	l := runner.Lives{Kills: kills, End: true, Silence: runner.MaxSilence}
	l.Hear = map[string]runner.Hearing{
		"ack":  runner.Hears(r.acknowledged),
		"from": runner.Hears(func(uint64) error { ready(); return nil }),
	}
	l.Next = func(k runner.Kill) runner.Work {
		begins()
		next := r.worker
		next.Gate = k.Gate
		return &next
	}
	err = l.Run(ctx)
	return l.Killed, err
}

// acknowledged records verdicts.
func (r *claimRun) acknowledged(a reached) error {
	from, next := r.worker.From, a.At+uint64(len(a.Verdicts))
	if a.Partition < 0 || a.Partition >= len(from) || next < a.At || next > r.deal.Ends {
		return errors.New("there are no such events")
	}
	for i, verdict := range a.Verdicts {
		if verdict != 'c' && verdict != 'd' {
			return errors.New("there is no such verdict")
		}
		if err := r.ledger.tell(r.deal.Number(a.Partition, a.At+uint64(i)), verdict == 'c'); err != nil {
			return err
		}
		if verdict == 'c' {
			r.claimed++
		}
	}
	r.sent += uint64(len(a.Verdicts))
	from[a.Partition] = max(from[a.Partition], next)
	return nil
}

// below marks the events before the ends of the partitions.
func (r *claimRun) below(ends []uint64) []bool {
	marked := make([]bool, r.worker.Log.N)
	for p, end := range ends {
		for at := range end {
			marked[r.deal.Number(p, at)] = true
		}
	}
	return marked
}
