package kafkaadapter

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/internal/kafkatest"
)

// A wire lets all connections to the brokers through, or none.
type wire struct {
	up     atomic.Bool
	failed atomic.Int64 // connections refused
}

func (w *wire) options(o *Options) {
	o.Client = append(o.Client, kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		if !w.up.Load() {
			w.failed.Add(1)
			return nil, errors.New("no way there")
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}))
}

// A cuttable is a wire whose connections can be cut.
type cuttable struct {
	wire
	mu    sync.Mutex
	conns []net.Conn
}

func newCuttable() *cuttable {
	w := &cuttable{}
	w.up.Store(true)
	return w
}

func (w *cuttable) options(o *Options) {
	o.Client = append(o.Client, kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.up.Load() {
			w.failed.Add(1)
			return nil, errors.New("no way there")
		}
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			w.conns = append(w.conns, c)
		}
		return c, err
	}))
}

// cut ends all connections, and makes new ones fail.
func (w *cuttable) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up.Store(false)
	for _, c := range w.conns {
		c.Close()
	}
}

func (w *wire) untilFailed(t *testing.T, m *member) {
	t.Helper()
	kafkatest.Until(t, "connections that fail", func() bool {
		select {
		case <-m.done:
			t.Fatalf("Run ended: %v", m.err)
		default:
		}
		return w.failed.Load() >= 10
	})
}

func TestRunContinuesWhileNoBrokerCanBeReached(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b")
	var w wire
	m := r.start(t, r.work(3, nil), w.options)
	w.untilFailed(t, m)
	w.up.Store(true)
	r.untilStored(t, 0, 2)
	m.stop(t)
	r.checkOnce(t, "a", "b")
}

func TestRunEndsWhileNoBrokerCanBeReached(t *testing.T) {
	r := newRig(t, 1)
	var w wire
	m := r.start(t, r.work(3, nil), w.options)
	w.untilFailed(t, m)
	m.stop(t)
}
