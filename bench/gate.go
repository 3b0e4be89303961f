package bench

import "sync/atomic"

// A consumer that is to be killed passes a gate with each record that it handles. The gate reports
// "here" at the point of the kill, so that the killer follows the consumer's progress and no clock;
// and it blocks a little later, so that a late killer cannot miss the point.
type gate struct {
	gateOrder
	say   *voice
	from  uint64
	calls atomic.Uint64
}

// A gateOrder counts a consumer's progress in its log, over all its processes: in records, or, if
// it has a store, in claimed events.
type gateOrder struct {
	Here uint64 // report "here"
	Wait uint64 // at this point, wait for the kill
}

// open sets where the consumer continues.
func (g *gate) open(from uint64) {
	g.from = from
	g.say.line("from", from)
	if from >= g.Here {
		g.say.line("here", nil)
	}
}

// pass counts n records. A transaction that is run again passes again, so that the count may be
// ahead of the work, but never behind.
func (g *gate) pass(n int) {
	at := g.from + g.calls.Add(uint64(n))
	if at >= g.Here && at-uint64(n) < g.Here {
		g.say.line("here", nil)
	}
	if at > g.Wait {
		select {} // until the killer comes
	}
}

// hold blocks once the point of the kill is reached.
func (g *gate) hold() {
	if g.passed() >= g.Here {
		select {} // until the killer comes
	}
}

// passed returns the consumer's progress.
func (g *gate) passed() uint64 { return g.from + g.calls.Load() }
