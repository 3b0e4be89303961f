package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// KillMode says how the killed process claims.
type KillMode string

// The modes: each claim commits by itself; or it commits with the work, a counter for each event,
// and the offset. The empty mode is KillOwn.
const (
	KillOwn  KillMode = "own"
	KillWork KillMode = "work"
)

// KillOptions configure Kill.
type KillOptions struct {
	Kills    int // 0 = DefaultKills
	Store    StoreName
	Mode     KillMode
	Dir      string // of the store, which must be new; "" = a temporary one, which is removed
	Seed     uint64 // of the log; the points of the kills are random in any case
	Progress Progress

	fault killFault
	brief bool // kill after a tenth of the usual number of verdicts
}

// DefaultKills is the number of kills of a run.
const DefaultKills = 20

// A KillReport is what the books of the parent say.
type KillReport struct {
	Kills int `json:"kills"`
	// Acked counts the distinct events of whose verdict the process had told before it was killed.
	Acked uint64 `json:"acked"`
	// Lost counts those of them that were absent after a restart.
	Lost uint64 `json:"lost"`
	// ClaimedTwice counts events that were told claimed more than once.
	ClaimedTwice uint64 `json:"claimed_twice"`
	// StateMismatch counts disagreements of claim, counter and offset, at every restart and at the
	// end.
	StateMismatch uint64 `json:"state_mismatch"`
	// Sent counts the verdicts that were told, repeats included; Early the kills before the store
	// was open and checked.
	Sent    uint64  `json:"sent"`
	Early   int     `json:"kills_before_ready"`
	Seconds float64 `json:"seconds"`
	Outcome
}

// Kill lets a process claim, kills it at random points, and starts it again on the same store,
// until it was killed as often as asked for. The last process sends everything once more, looks at
// all of it, verifies the store and ends.
func Kill(ctx context.Context, o KillOptions) (report KillReport, err error) {
	defer report.end(&err)
	if o.Kills == 0 {
		o.Kills = DefaultKills
	}
	if o.Mode == "" {
		o.Mode = KillOwn
	}
	if o.Kills < 0 || o.Mode != KillOwn && o.Mode != KillWork {
		return report, fmt.Errorf("%w: %d kills in mode %q: give a number from 1 and %s or %s", ErrUsage, o.Kills, o.Mode, KillOwn, KillWork)
	}
	if _, err := o.Store.kind(); err != nil {
		return report, err
	}
	src, err := newSource(o.Seed, UUIDv4, 2, 2)
	if err != nil {
		return report, err
	}
	place, err := newPlace(o.Dir)
	if err != nil {
		return report, err
	}
	defer place.remove(&err)

	start := time.Now()
	run := killing{KillOptions: o, dir: place.Dir, log: killLog{source: src, Parts: killParts}}
	run.books = newBooks(&run.log)
	err = run.all(ctx, &report)
	run.books.report(&report)
	report.Seconds = time.Since(start).Seconds()
	if err == nil {
		err = report.broken(run.books)
	}
	return report, err
}

// killParts is the number of partitions, each with a consumer of its own.
const killParts = 4

func (b *books) report(r *KillReport) {
	r.Acked, r.Lost, r.ClaimedTwice = b.acked(), uint64(len(b.lost)), b.claimedTwice()
	r.StateMismatch = uint64(b.mismatches)
}

func (r *KillReport) broken(b *books) error {
	if r.Lost+r.ClaimedTwice+r.StateMismatch == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d lost, %d claimed twice, %d state mismatches (first %s): run again with --dir to keep the store, and report it",
		ErrNotHeld, r.Lost, r.ClaimedTwice, r.StateMismatch, b.firstWrong)
}

// killing is a run of Kill.
type killing struct {
	KillOptions
	dir   string
	log   killLog
	books *books
}

func (k *killing) all(ctx context.Context, report *KillReport) error {
	for report.Kills < k.Kills {
		k.Progress.tell("kill", uint64(report.Kills), uint64(k.Kills))
		if err := k.life(ctx, report); err != nil {
			return err
		}
		report.Kills++
	}
	k.Progress.tell("kill", uint64(report.Kills), uint64(k.Kills))
	k.Progress.tell("send all again", 0, 0)
	_, err := live(ctx, "kill", k.order(true), 0, func(_ *child, word, rest string) (bool, error) {
		report.count(word, rest)
		return true, k.books.take(word, rest)
	})
	return err
}

// count counts verdicts.
func (r *KillReport) count(word, rest string) {
	if word != "ack" {
		return
	}
	for i := len(rest) - 1; i >= 0 && rest[i] != ' '; i-- {
		r.Sent++
	}
}

func (k *killing) order(last bool) killOrder {
	return killOrder{
		Store: k.Store, Dir: k.dir, Mode: k.Mode, Log: k.log,
		Parts: append([]killPart(nil), k.books.parts...), Last: last, Fault: k.fault,
	}
}

// life is one process, from its start to its death.
func (k *killing) life(ctx context.Context, report *KillReport) error {
	plan := newKillPlan(report.Kills)
	if k.brief {
		plan.verdicts /= 10
	}
	ready, begun := false, report.Sent
	_, err := live(ctx, "kill", k.order(false), plan.early, func(c *child, word, rest string) (bool, error) {
		report.count(word, rest)
		ready = ready || word == "ready"
		if plan.early == 0 && ready && report.Sent-begun >= plan.verdicts {
			plan.early = -1
			time.AfterFunc(plan.late, c.kill)
		}
		return true, k.books.take(word, rest)
	})
	if !ready {
		report.Early++
	}
	return err
}

// A killPlan is when to kill a process: at a time after its start, which may be before its store is
// open; or some time after a number of verdicts were told, 0 for as soon as the store was looked
// at.
type killPlan struct {
	early    time.Duration
	verdicts uint64
	late     time.Duration
}

// newKillPlan draws a plan; every other process gets to claim for a while.
func newKillPlan(life int) killPlan {
	draw := rand.IntN(4)
	switch {
	case life%2 == 0 || draw == 0:
		return killPlan{verdicts: 600 + rand.Uint64N(3000), late: rand.N(5 * time.Millisecond)}
	case draw == 1:
		return killPlan{late: rand.N(10 * time.Millisecond)}
	default:
		return killPlan{early: 1 + rand.N(150*time.Millisecond)}
	}
}
