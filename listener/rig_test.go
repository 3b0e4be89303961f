package listener_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/telemetry"
)

var ctx = context.Background()

var errHandler = errors.New("the handler failed")

type message struct{ id string }

func idOf(m message) string { return m.id }

// A rig is an engine on a store in memory, with the log and the metrics of its listeners.
type rig struct {
	t   *testing.T
	eng *engine.Engine
	mem *storetest.Mem
	log logged
	reg *prometheus.Registry
}

func newRig(t *testing.T) *rig {
	t.Helper()
	mem := storetest.NewMem(storage.Identity{})
	r := &rig{t: t, mem: mem, eng: open(t, mem), reg: prometheus.NewRegistry()}
	t.Cleanup(func() { _ = r.eng.Close() })
	return r
}

func open(t *testing.T, store storage.Store) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return eng
}

// wrap makes a listener with the rig's log and metrics; change may be nil.
func (r *rig) wrap(handle func(context.Context, message) error, change func(*listener.Options[message])) func(context.Context, message) error {
	r.t.Helper()
	o := listener.Options[message]{ID: idOf, Queue: "prizes", Telemetry: telemetry.Options{Logger: slog.New(slog.NewJSONHandler(&r.log, nil)), Registerer: r.reg}}
	if change != nil {
		change(&o)
	}
	f, err := listener.Wrap(r.eng, handle, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// crash cuts the power, and opens the durable state in a new engine.
func (r *rig) crash() {
	r.t.Helper()
	mem := r.mem.Crash()
	_ = r.eng.Close()
	r.mem, r.eng = mem, open(r.t, mem)
}

// wantCount checks the number of deliveries to the queue "prizes" with that outcome.
func (r *rig) wantCount(outcome string, want int) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	got := 0
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Label[1].GetValue() == outcome && m.Label[2].GetValue() == "prizes" {
				got += int(m.Counter.GetValue())
			}
		}
	}
	if got != want {
		r.t.Errorf("%d deliveries are counted as %s, want %d", got, outcome, want)
	}
}

// logged collects log lines in JSON.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fields)
	}
	return lines
}

// A counting handler counts its calls and returns err.
type counting struct {
	calls atomic.Int64
	err   error
}

func (c *counting) handle(context.Context, message) error {
	c.calls.Add(1)
	return c.err
}

func (c *counting) want(t *testing.T, want int64) {
	t.Helper()
	if got := c.calls.Load(); got != want {
		t.Errorf("the handler was called %d times, want %d", got, want)
	}
}

func wantNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("the delivery is not acknowledged: %v", err)
	}
}

// wantInProgress checks that a delivery returns an InProgressError with the lease's end.
func wantInProgress(t *testing.T, err error, end time.Time) {
	t.Helper()
	var busy *listener.InProgressError
	if !errors.Is(err, listener.ErrInProgress) || !errors.As(err, &busy) {
		t.Fatalf("a delivery of a message that is being handled returns %v", err)
	}
	if !busy.LeaseEnd.Equal(end.Truncate(time.Millisecond)) || busy.ID != "a" {
		t.Errorf("%q is leased until %v, want %v", busy.ID, busy.LeaseEnd, end)
	}
}
