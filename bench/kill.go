package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// KillOptions configure Kill.
type KillOptions struct {
	Common
	Kills int    `help:"How often the process is killed." default:"20" placeholder:"N"`
	Mode  Mode   `help:"own: each claim commits by itself. work: it commits with a counter and the offset." enum:"own,work" default:"own"`
	Seed  uint64 `help:"Seed of the log. The points of the kills are random in any case." default:"1"`

	fault killFault
	brief bool // kill after a tenth of the usual number of verdicts
}

// A KillReport is what the books of the parent say.
type KillReport struct {
	Kills int `json:"kills"`
	// Acked counts the distinct events of whose verdict the process had told before it was killed.
	Acked uint64 `json:"acked"`
	// Lost counts those of them that were absent after a restart.
	Lost uint64 `json:"lost"`
	// ClaimedTwice counts events that were told claimed more than once.
	ClaimedTwice uint64 `json:"claimed_twice"`
	// StateMismatch counts disagreements of claims, counters, sums and offsets: the most that a
	// check at a restart or at the end has found.
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
	defer stopwatch(&report.Seconds)()
	if o.Kills < 1 {
		return report, fmt.Errorf("%w: %d kills: give a number from 1", ErrUsage, o.Kills)
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
)

func (r *KillReport) broken(b *books) error {
	if r.Lost+r.ClaimedTwice+r.StateMismatch == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d lost, %d claimed twice, %d state mismatches (first %s): run again with --dir to keep the store, and report it",
		ErrNotHeld, r.Lost, r.ClaimedTwice, r.StateMismatch, b.first)
}

// killing is a run of Kill.
type killing struct {
	KillOptions
	books  *books
	report *KillReport
	dir    string
}

func (k *killing) all(ctx context.Context) error {
	ready := true
	l := lives{
		kills: make([]kill, k.Kills),
		began: func(uint64) error {
			ready = true
			return nil
		},
		hear: k.books.hear(),
	}
	for i := range l.kills {
		l.kills[i] = k.draw(i)
	}
	l.worker = func(next kill) worker {
		if !ready {
			k.report.Early++
		}
		ready, k.report.Kills = false, l.killed
		k.Progress.tell("kill", uint64(l.killed), uint64(k.Kills))
		if next == never {
			k.Progress.tell("send all again", 0, 0)
		}
		return &claimWorker{
			Store: k.Store, Dir: k.dir, Mode: k.Mode, Log: *k.books.log, Told: slices.Clone(k.books.told),
			Last: next == never, Fault: k.fault, gateOrder: next.gateOrder,
		}
	}
	err := l.run(ctx)
	b, r := k.books, k.report
	r.Kills, r.Acked, r.Sent, r.Lost, r.ClaimedTwice, r.StateMismatch = l.killed, b.acked, b.sent, uint64(len(b.lost)), b.twice, b.mismatches
	return err
}

// draw plans the kill of a process: at a time after its start, which may be before its store is
// open; or some time after a number of verdicts, 0 for as soon as the store was checked. Every
// other process gets to claim for a while.
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

// Books are what the parent of claim workers has written down: what the processes had said by the
// time they were dead, and nothing else.
type books struct {
	log  *topicLog
	deal dealt
	told []uint64 // by partition

	claims        []uint8 // by event: 0 = no verdict was acknowledged, otherwise 1 more than it was told claimed
	acked, twice  uint64  // events
	sent, claimed uint64  // verdicts
	lost          map[uint64]bool
	mismatches    uint64 // the most of one check
	first         string
}

func newBooks(log *topicLog, parts int) *books {
	return &books{log: log, deal: log.deal(parts), told: make([]uint64, parts), claims: make([]uint8, log.N), lost: make(map[uint64]bool)}
}

// hear enters what claim workers say.
func (b *books) hear() map[string]hearing {
	return map[string]hearing{"checked": hears(b.found), "offset": hears(b.committed), "ack": hears(b.acknowledged)}
}

// committed enters the offset of a partition.
func (b *books) committed(r reached) error {
	if r.Partition < 0 || r.Partition >= len(b.told) {
		return fmt.Errorf("there is no partition %d", r.Partition)
	}
	b.told[r.Partition] = max(b.told[r.Partition], r.At)
	return nil
}

// found enters what a check has found.
func (b *books) found(f findings) error {
	for _, n := range f.Lost {
		b.lost[n] = true
	}
	b.mismatches = max(b.mismatches, f.Mismatches)
	b.first = cmp.Or(b.first, f.First)
	return nil
}

// acknowledged enters verdicts.
func (b *books) acknowledged(r reached) error {
	if r.Partition < 0 || r.Partition >= len(b.told) || r.At > b.told[r.Partition] {
		return fmt.Errorf("these are not the verdicts of what comes next: the partitions are at %d", b.told)
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
	return b.committed(reached{Partition: r.Partition, At: r.At + uint64(len(r.Verdicts))})
}
