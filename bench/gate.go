package bench

import "sync/atomic"

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
	g.say.line("from", from)
	if from >= g.Here {
		g.say.line("here", nil)
	}
}

// pass counts n records. A transaction that is run again passes again, so that the count may be
// ahead of what is done, and never behind.
func (g *gate) pass(n int) {
	at := g.from + g.calls.Add(uint64(n))
	if at >= g.Here && at-uint64(n) < g.Here {
		g.say.line("here", nil)
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
