package simulation

import (
	"context"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
)

// A wire is how a machine reaches the broker: not at all once the power is off.
type wire struct {
	net *kfake.VirtualNetwork
	p   *power

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
	return &plug{c, w.p}, nil
}

// cut ends all connections. The broker sees them end.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close() // a pipe's cannot fail
	}
}

type plug struct {
	net.Conn
	p *power
}

func (c *plug) Write(b []byte) (int, error) {
	if !c.p.tick(atWire) {
		return 0, errPower
	}
	return c.Conn.Write(b)
}
