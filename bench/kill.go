package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hapax-dev/hapax/engine"
)

// KillOptions configure Kill.
type KillOptions struct {
	Common
	Kills int    `help:"How often the process is killed." default:"20"`
	Mode  Mode   `help:"own: each claim commits by itself. work: it commits with a counter and the offset." enum:"own,work" default:"own"`
	Seed  uint64 `help:"Seed of the log. The points of the kills are random in any case." default:"1"`

	fault killFault
	brief bool // kill after a tenth of the usual number of verdicts
}

// A KillReport has the parent's results.
type KillReport struct {
	Kills int `json:"kills"`
	// Acked counts the distinct events whose verdict the process had reported before it was killed.
	Acked uint64 `json:"acked"`
	// Lost counts the events that were acknowledged, or are before a committed offset, and are
	// absent after the last kill.
	Lost uint64 `json:"lost"`
	// ClaimedTwice counts events that got the verdict claimed more than once. An event that was
	// undone by a kill is one of them if it was sent again.
	ClaimedTwice uint64 `json:"claimed_twice"`
	// StateMismatch counts disagreements of claims, counters and offsets after the last kill.
	StateMismatch uint64 `json:"state_mismatch"`
	// Sent counts the reported verdicts, repeats included; Early the kills before the store was
	// open.
	Sent    uint64  `json:"sent"`
	Early   int     `json:"kills_before_ready"`
	Seconds float64 `json:"seconds"`
	Outcome
}

// Kill lets a process claim, kills it at random points, and restarts it on the same store, until it
// was killed the requested number of times. Then it opens the store, checks all of it, claims all
// events once more, and verifies the store.
func Kill(ctx context.Context, o KillOptions) (report KillReport, err error) {
	defer report.end(&err)
	defer stopwatch(&report.Seconds)()
	if o.Kills < 1 || o.Kills > maxKills {
		return report, fmt.Errorf("%w: %d kills: give 1 to %d", ErrUsage, o.Kills, maxKills)
	}
	src, err := newSource(o.Seed, UUIDv4, 2, 2)
	if err != nil {
		return report, err
	}
	log := topicLog{source: src, N: min((o.Kills+1)*killEvents, mostKillEvents), Dup: killRepeats, Recent: killRecent}
	run := killing{KillOptions: o, books: newBooks(&log, killParts), report: &report}
	if err := inPlace(o.Dir, func(dir string) error { run.dir = dir; return run.all(ctx) }); err != nil {
		return report, err
	}
	return report, report.broken(run.books)
}

const (
	killParts      = 4      // partitions, each with a consumer of its own
	killEvents     = 20_000 // of the log, for each process
	mostKillEvents = 4_000_000
	killRepeats    = 0.2
	killRecent     = 100 * killParts
	maxKills       = 100_000
)

func (r *KillReport) broken(b *books) error {
	if r.Lost+r.ClaimedTwice+r.StateMismatch == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d lost, %d claimed twice, %d state mismatches (first %s): %s",
		ErrNotHeld, r.Lost, r.ClaimedTwice, r.StateMismatch, b.first, keepAndReport)
}

// killing is a run of Kill.
type killing struct {
	KillOptions
	books  *books
	report *KillReport
	dir    string
}

func (k *killing) all(ctx context.Context) error {
	b, r := k.books, k.report
	l := lives{kills: make([]kill, k.Kills), hear: b.hear(), end: true}
	for i := range l.kills {
		l.kills[i] = k.draw(i)
	}
	ready := true
	l.hear["from"] = hears(func(uint64) error {
		ready = true
		return nil
	})
	l.worker = func(next kill) worker {
		if !ready {
			r.Early++
		}
		ready = false
		k.Progress.tell("kill", uint64(l.killed), uint64(k.Kills))
		return &claimWorker{Store: k.Store, Dir: k.dir, Mode: k.Mode, Log: *b.log, From: b.told, Fault: k.fault, gateOrder: next.gateOrder}
	}
	err := l.run(ctx)
	r.Kills, r.Acked, r.Sent, r.ClaimedTwice = l.killed, b.acked, b.sent, b.twice
	if err != nil {
		return err
	}
	return k.check(ctx)
}

// checkAhead is how many events of a partition beyond the last one are checked: none of them may be
// partial.
const checkAhead = 2 * maxChunk

// check opens the store of the last process and compares it with the parent's records.
func (k *killing) check(ctx context.Context) (err error) {
	b, r := k.books, k.report
	e, err := openEngine(k.Store, k.dir, tuning{}, b.log.options())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	ends := slices.Clone(b.told)
	l := ledger{e: e, log: b.log, progress: k.Progress}
	if k.Mode == Work {
		l.state = &expected{topic: b.log.Topic, group: killGroup, ends: b.told, open: true}
		for p := range ends {
			o, _, err := e.Offset(ctx, killPosition(b.log, p))
			if err != nil {
				return err
			}
			ends[p] = max(ends[p], uint64(o.Next))
		}
	}
	l.must = b.below(ends)
	l.limit = min((slices.Max(ends)+checkAhead)*killParts, uint64(b.log.N))
	if err := l.check(ctx); err != nil {
		return err
	}
	if _, twice := handled(l.counts); twice > 0 {
		l.wrong("%d events are counted twice", twice)
	}
	b.first = cmp.Or(b.first, l.first)
	r.Lost, r.StateMismatch = l.lost, l.mismatches
	again, err := claimAgain(ctx, e, b, ends)
	if r.ClaimedTwice += less(again, l.lost); err != nil { // a lost event is claimed as new
		return err
	}
	report, err := e.Verify(ctx)
	if err == nil && report.Total > 0 {
		err = fmt.Errorf("%w: %d problems in the store, the first is: %s", ErrNotHeld, report.Total, report.Problems[0])
	}
	return err
}

// claimAgain claims the events before the ends of the partitions once more, and returns how many of
// them got the verdict claimed.
func claimAgain(ctx context.Context, e *opened, b *books, ends []uint64) (claimed uint64, err error) {
	for p, end := range ends {
		for at := uint64(0); at < end; at += fillBatch {
			_, events := b.deal.events(p, at, min(fillBatch, end-at))
			results, err := e.TryClaimBatch(ctx, events)
			if err != nil {
				return claimed, err
			}
			for i := range results {
				if results[i].Verdict == engine.Claimed {
					claimed++
				}
			}
			if err := told(results); err != nil {
				return claimed, err
			}
		}
	}
	return claimed, nil
}

// draw plans the kill of a process: at a time after its start, which may be before its store is
// open; or some time after a number of verdicts, 0 for right after the store was checked. Every
// other process claims for a while.
func (k *killing) draw(life int) kill {
	plan := never
	switch draw := rand.IntN(4); {
	case life%2 == 0 || draw == 0:
		if plan.Here, plan.after = 600+rand.Uint64N(3000), rand.N(5*time.Millisecond); k.brief {
			plan.Here /= 10
		}
	case draw == 1:
		plan.Here, plan.after = 0, rand.N(10*time.Millisecond)
	default:
		plan.early = 1 + rand.N(150*time.Millisecond)
	}
	return plan
}

// Books are the records of the parent of claim workers: all that the processes had reported when
// they were dead.
type books struct {
	log  *topicLog
	deal dealt
	told []uint64 // by partition: all events before it were acknowledged, or committed

	// by event: 0 = no verdict was acknowledged, otherwise 1 more than the number of verdicts
	// claimed
	claims        []uint8
	acked, twice  uint64 // events
	sent, claimed uint64 // verdicts
	first         string // the errors found
}

func newBooks(log *topicLog, parts int) *books {
	return &books{log: log, deal: log.deal(parts), told: make([]uint64, parts), claims: make([]uint8, log.N)}
}

// hear records the reports of claim workers.
func (b *books) hear() map[string]hearing {
	return map[string]hearing{"ack": hears(b.acknowledged)}
}

// acknowledged records verdicts.
func (b *books) acknowledged(r reached) error {
	next := r.At + uint64(len(r.Verdicts))
	if r.Partition < 0 || r.Partition >= len(b.told) || next < r.At || next > b.deal.ends {
		return errors.New("there are no such events")
	}
	for i, verdict := range r.Verdicts {
		at := r.At + uint64(i)
		n := b.deal.number(r.Partition, at)
		if b.claims[n] == 0 {
			b.claims[n] = 1
			b.acked++
		}
		switch verdict {
		case 'c':
			b.claimed++
			if b.claims[n]++; b.claims[n] == 3 {
				b.twice++
				b.first = cmp.Or(b.first, fmt.Sprintf("claimed twice: event %d of partition %d", at, r.Partition))
			}
			b.claims[n] = min(b.claims[n], 3)
		case 'd':
		default:
			return errors.New("there is no such verdict")
		}
	}
	b.sent += uint64(len(r.Verdicts))
	b.told[r.Partition] = max(b.told[r.Partition], next)
	return nil
}

// below marks the events before the ends of the partitions.
func (b *books) below(ends []uint64) []bool {
	marked := make([]bool, b.log.N)
	for p, end := range ends {
		for at := range end {
			marked[b.deal.number(p, at)] = true
		}
	}
	return marked
}
