package simulation

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// A moment is a kind of event at which the power can be cut. Each is counted on its own.
type moment string

// The moments. Apply and sync tick before the store is asked, while it works, and after it has
// answered.
const (
	atApply   moment = "apply"   // a batch is handed to the store
	atSync    moment = "sync"    // a batch becomes durable
	atDisk    moment = "disk"    // Pebble changes its directory, also while it opens
	atHandler moment = "handler" // a handler begins, or has written and not returned
	atWire    moment = "wire"    // a request leaves for the broker
	atIdle    moment = "idle"    // everything is handled
)

// errPower is what everything on a machine without power answers.
var errPower = errors.New("the power was cut")

// A power is the supply of one machine. It is cut at the nth occurrence of a moment, once, and
// stays off.
type power struct {
	kind moment
	nth  int

	off  atomic.Bool
	dead chan struct{} // closed when the power is off and what survives is kept

	mu   sync.Mutex // guards seen
	seen map[moment]int
	take func() // keeps what survives and cuts the wires
}

func newPower(kind moment, nth int) *power {
	return &power{kind: kind, nth: nth, dead: make(chan struct{}), seen: make(map[moment]int)}
}

func (p *power) String() string { return fmt.Sprintf("%s %d", p.kind, p.nth) }

// tick says that a moment has come, and whether the power is still on after it.
func (p *power) tick(m moment) (on bool) {
	if p.off.Load() {
		return false
	}
	p.mu.Lock()
	p.seen[m]++
	hit := m == p.kind && p.seen[m] == p.nth
	p.mu.Unlock()
	if hit {
		p.cut()
	}
	return !p.off.Load()
}

// cut switches off. Off comes first: who finds the power on after a sync has returned was durable
// before what survives was taken.
func (p *power) cut() {
	if p.off.Swap(true) {
		return
	}
	p.take()
	close(p.dead)
}
