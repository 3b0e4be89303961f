package simulation

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// wires are the connections of a machine.
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

// cut ends all connections of the machine. The broker sees their end.
func (s *wires) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.all {
		w.cut()
	}
}

// A wire connects a member to the broker; it works only while the power is on.
type wire struct {
	net   *kfake.VirtualNetwork
	p     *power
	muted atomic.Bool // requests are lost

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
		_ = c.Close() // that of a pipe cannot fail
		return nil, errPower
	}
	w.conns = append(w.conns, c)
	return &plug{Conn: c, w: w}, nil
}

// cut ends the connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close() // that of a pipe cannot fail
	}
	w.conns = nil
}

// mute loses all requests until restore is called.
func (w *wire) mute() { w.muted.Store(true) }

// restore ends the connections on which requests were lost; new ones work.
func (w *wire) restore() {
	w.muted.Store(false)
	w.cut()
}

type plug struct {
	net.Conn
	w       *wire
	fetches atomic.Bool // its requests are for records
}

func (c *plug) Write(b []byte) (int, error) {
	if !c.w.p.tick(atWire) {
		return 0, errPower
	}
	if c.w.muted.Load() {
		return len(b), nil
	}
	if isFetch(b) {
		c.fetches.Store(true)
	}
	return c.Conn.Write(b)
}

// fetchTime is the time until records arrive. If one partition of several answers with an error,
// the client fetches again at once, until it has looked up the leaders: without fetchTime, virtual
// time would not pass. A delay of other requests could block a mutex of the client, which would
// also stop virtual time.
const fetchTime = 50 * time.Microsecond

func (c *plug) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.fetches.Load() {
		time.Sleep(fetchTime)
	}
	return n, err
}

// isFetch reports whether a request is for records: its kind follows its length.
func isFetch(request []byte) bool {
	return len(request) >= 6 && kmsg.Key(binary.BigEndian.Uint16(request[4:])) == kmsg.Fetch
}
