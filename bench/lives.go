package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// maxSilence is how long a child may make no progress before the run is given up.
const maxSilence = 2 * time.Minute

// Lives are the processes that run one after the other on the same store: each is killed as
// planned, and the one after the last kill ends by itself or is killed by hear.
type lives struct {
	worker func(k kill) worker // of the next process
	kills  []kill
	// hear gets the lines of the processes, except those of the gate, may kill the process, and
	// reports whether the line shows progress.
	hear func(c *child, word, rest string) (moved bool, err error)
	// began, if not nil, is called with each process's own count of where it begins.
	began func(from uint64) error
	// end makes the last kill the end: no process follows it.
	end bool

	killed int
}

func (l *lives) run(ctx context.Context) error {
	for {
		k := never
		if l.killed < len(l.kills) {
			k = l.kills[l.killed]
		}
		killed, err := l.life(ctx, k)
		switch {
		case err != nil || k == never:
			return err
		case !killed:
			return fmt.Errorf("the process ended before its kill %d", l.killed+1)
		}
		if l.killed++; l.end && l.killed == len(l.kills) {
			return nil
		}
	}
}

// life is one process, from its start to its end.
func (l *lives) life(ctx context.Context, k kill) (killed bool, err error) {
	c, err := startChild(ctx, l.worker(k))
	if err != nil {
		return false, err
	}
	var silent atomic.Bool
	silence := time.AfterFunc(maxSilence, func() {
		silent.Store(true)
		c.kill()
	})
	defer silence.Stop()
	if k.early > 0 {
		defer time.AfterFunc(k.early, c.kill).Stop()
	}
	killed, err = c.hear(func(word, rest string) (err error) {
		moved := true
		switch word {
		case "here":
			time.AfterFunc(k.after, c.kill)
		case "from":
			from, _ := strconv.ParseUint(rest, 10, 64)
			if l.began != nil {
				err = l.began(from)
			}
		default:
			moved, err = l.hear(c, word, rest)
		}
		if moved {
			silence.Reset(maxSilence)
		}
		return err
	})
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err == nil && silent.Load():
		err = fmt.Errorf("its process has made no progress for %v", maxSilence)
	}
	return killed, err
}

// A gate is where a consumer that is to be killed passes with each record it handles. It says
// "here" at the point of the kill, so that the killer follows the consumer's progress and no clock;
// and it lets nothing pass a little later, so that a killer who comes late cannot miss it.
type gate struct {
	gateOrder
	say   *voice
	from  uint64
	calls atomic.Uint64
}

// A gateOrder counts how far a consumer has come in its log, over all its lives: in records, or, if
// it has a store, in events that are claimed.
type gateOrder struct {
	Here uint64 // say "here"
	Wait uint64 // having come so far, wait to be killed
}

// open says from where the consumer continues.
func (g *gate) open(from uint64) {
	g.from = from
	g.say.line("from %d", from)
	if from >= g.Here {
		g.say.line("here")
	}
}

// pass counts n records. A transaction that is run again passes again, so that the count may be
// ahead of what is done, and never behind.
func (g *gate) pass(n int) {
	at := g.from + g.calls.Add(uint64(n))
	if at >= g.Here && at-uint64(n) < g.Here {
		g.say.line("here")
	}
	if at > g.Wait {
		select {} // until the killer comes
	}
}

// hold lets nothing pass once the point of the kill has come.
func (g *gate) hold() {
	if g.passed() >= g.Here {
		select {} // until the killer comes
	}
}

// passed is how far the consumer has come.
func (g *gate) passed() uint64 { return g.from + g.calls.Load() }

// A kill is when to kill a process: some time after the gate's "here", and early after its start,
// whatever it does, unless that is 0.
type kill struct {
	gateOrder
	after, early time.Duration
}

// never lets a process come to the end.
var never = kill{gateOrder: gateOrder{Here: ^uint64(0), Wait: ^uint64(0)}}

const (
	longestSlack = 4000 // records
	longestAfter = 5 * time.Millisecond
	longestJoin  = 60 * time.Millisecond // to join the group, or some of it
)

// drawKills draws a kill from each of n equal parts of the way, all of them before its end. Some
// kills wait in a handler for the killer, others meet whatever runs. One in eight comes while the
// consumer starts, if that is wanted.
func drawKills(way uint64, n int, atStart bool) []kill {
	kills := make([]kill, n)
	part := float64(way) * 0.95 / float64(n)
	for i := range kills {
		k := &kills[i]
		k.Here = 1 + uint64((float64(i)+rand.Float64())*part)
		k.Wait = min(k.Here+rand.Uint64N(longestSlack), way-1)
		k.after = rand.N(longestAfter)
		if atStart && rand.IntN(8) == 0 {
			k.Here, k.after = 0, rand.N(longestJoin)
		}
	}
	return kills
}

// leastPerKill is how many events there have to be for each kill.
const leastPerKill = 50
