package simulation

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kfake"
)

// wires are those of a machine.
type wires struct {
	net *kfake.VirtualNetwork
	p   *power

	mu  sync.Mutex // guards all
	all []*wire
}

func (s *wires) add() *wire {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &wire{net: s.net, p: s.p}
	s.all = append(s.all, w)
	return w
}

// cut ends all connections of the machine. The broker sees them end.
func (s *wires) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.all {
		w.cut()
	}
}

// A wire is how a member reaches the broker: not at all once the power is off.
type wire struct {
	net   *kfake.VirtualNetwork
	p     *power
	muted atomic.Bool // what it sends is lost

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if w.p.off.Load() {
		return nil, errPower
	}
	c, err := w.net.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.p.off.Load() {
		_ = c.Close() // a pipe's cannot fail
		return nil, errPower
	}
	w.conns = append(w.conns, c)
	return &plug{c, w}, nil
}

// cut ends the connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close() // a pipe's cannot fail
	}
	w.conns = nil
}

// mute loses all requests from now on, until restore.
func (w *wire) mute() { w.muted.Store(true) }

// restore ends the connections on which requests were lost, and new ones work.
func (w *wire) restore() {
	w.muted.Store(false)
	w.cut()
}

type plug struct {
	net.Conn
	w *wire
}

func (c *plug) Write(b []byte) (int, error) {
	if !c.w.p.tick(atWire) {
		return 0, errPower
	}
	if c.w.muted.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
