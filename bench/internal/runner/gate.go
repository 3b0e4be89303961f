package runner

import "sync/atomic"

// A Gate counts the records that a consumer handles until it is killed. At the point of the kill it
// reports "here", so that the kill depends on the consumer's progress and not on a clock. A little
// later it blocks, so that a late kill cannot miss the point.
type Gate struct {
	order GateOrder
	say   *Voice
	from  uint64
	calls atomic.Uint64
}

// A GateOrder counts a consumer's progress in its log, over all its processes: in records, or, if
// it has a store, in claimed events.
type GateOrder struct {
	Here uint64 // report "here"
	Wait uint64 // at this point, wait for the kill
}

// NewGate returns a gate that reports through the given voice.
func NewGate(o GateOrder, say *Voice) *Gate { return &Gate{order: o, say: say} }

// Open sets the position at which the consumer continues.
func (g *Gate) Open(from uint64) {
	g.from = from
	g.say.Line("from", from)
	if from >= g.order.Here {
		g.say.Line("here", nil)
	}
}

// Pass counts n records. A transaction that runs again counts again, so the count may be ahead of
// the work, but is never behind it.
func (g *Gate) Pass(n int) {
	at := g.from + g.calls.Add(uint64(n))
	if at >= g.order.Here && at-uint64(n) < g.order.Here {
		g.say.Line("here", nil)
	}
	if at > g.order.Wait {
		select {} // until the killer comes
	}
}

// Hold blocks once the point of the kill is reached.
func (g *Gate) Hold() {
	if g.Passed() >= g.order.Here {
		select {} // until the killer comes
	}
}

// Passed returns the consumer's progress.
func (g *Gate) Passed() uint64 { return g.from + g.calls.Load() }
