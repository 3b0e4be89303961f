package bench

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

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

// open says from where the consumer goes on.
func (g *gate) open(from uint64) {
	g.from = from
	g.say.line("from %d", from)
	if from >= g.Here {
		g.say.line("here")
	}
}

// pass counts one record. A transaction that is run again passes again, so that the count may be
// ahead of what is done, and never behind.
func (g *gate) pass() {
	at := g.from + g.calls.Add(1)
	if at == g.Here {
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

// A kill is when to kill a consumer: after some time behind the gate's "here".
type kill struct {
	gateOrder
	after time.Duration
}

// never lets a consumer come to the end.
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
