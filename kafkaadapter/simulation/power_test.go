package simulation

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// A moment is a kind of event at which the power can fail. Each kind is counted separately.
type moment string

// The moments. Apply and sync tick before the store is called, while it works, and after it has
// answered.
const (
	atApply   moment = "apply"   // a batch is handed to the store
	atSync    moment = "sync"    // a batch becomes durable
	atDisk    moment = "disk"    // Pebble changes its directory, also while it opens
	atHandler moment = "handler" // a handler begins, or has written and not returned
	atWire    moment = "wire"    // a request is sent to the broker
	atIdle    moment = "idle"    // all records are handled
)

// errPower is the error of all operations on a machine without power.
var errPower = errors.New("the power has failed")

// A power is the power supply of one machine. It fails once, at the nth occurrence of a moment, and
// stays off.
type power struct {
	kind moment
	nth  int

	off  atomic.Bool
	dead chan struct{} // closed when the power is off and the surviving data is kept

	mu   sync.Mutex // guards seen
	seen map[moment]int
	take func() // keeps the surviving data and cuts the wires
}

func newPower(kind moment, nth int) *power {
	return &power{kind: kind, nth: nth, dead: make(chan struct{}), seen: make(map[moment]int)}
}

func (p *power) String() string { return fmt.Sprintf("%s %d", p.kind, p.nth) }

// tick counts a moment, and reports whether the power is still on after it.
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

// cut turns the power off. The power is off before the surviving data is copied: a sync that finds
// the power on after it has returned was durable before the copy.
func (p *power) cut() {
	if p.off.Swap(true) {
		return
	}
	p.take()
	close(p.dead)
}
