package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ErrStalled means that the store has not answered for longer than the lease, or 30 seconds if that is longer.
// The message is not handled, and its claim is withdrawn, or ends with the lease. The error also wraps
// context.DeadlineExceeded.
var ErrStalled = errors.New("hapax: listener: the store has not answered: check its disk")

// silence is how long a delivery may wait before that is reported, and how often it is repeated.
const (
	silence  = 30 * time.Second
	logEvery = time.Minute
)

// What a delivery waits for.
const (
	forStore = iota
	forHandler
	waitKinds
)

var waitNames = [waitKinds]string{"store", "handler"}

// waits are the deliveries of a listener that have not returned. They are reported while there are any: no
// goroutine runs otherwise.
type waits struct {
	log *slog.Logger

	mu      sync.Mutex // guards all below
	open    map[*delivery]struct{}
	isArmed bool // a timer will look at them
	logged  time.Time
}

// A delivery is a call of a listener.
type delivery struct {
	of    *waits
	id    slog.Attr
	kind  int
	since time.Time // it waits for kind
}

// begin adds a delivery, which waits for the store.
func (w *waits) begin(id slog.Attr) *delivery {
	d := &delivery{of: w, id: id, since: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[d] = struct{}{}
	w.arm(silence)
	return d
}

// awaits records what the delivery waits for.
func (d *delivery) awaits(kind int) {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	d.kind, d.since = kind, time.Now()
}

// end removes the delivery.
func (d *delivery) end() {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	delete(d.of.open, d)
}

// arm makes a timer look at the deliveries. mu is held.
func (w *waits) arm(after time.Duration) {
	if !w.isArmed {
		w.isArmed = true
		time.AfterFunc(after, w.look)
	}
}

// look logs the delivery that has waited longest.
func (w *waits) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isArmed = false
	if len(w.open) == 0 {
		return
	}
	now := time.Now()
	var oldest *delivery
	for d := range w.open {
		if oldest == nil || d.since.Before(oldest.since) {
			oldest = d
		}
	}
	waited := now.Sub(oldest.since)
	if waited < silence {
		w.arm(silence - waited)
		return
	}
	if now.Sub(w.logged) >= logEvery {
		w.logged = now
		w.log.LogAttrs(context.Background(), slog.LevelWarn, "listener: a delivery has not returned", oldest.id,
			slog.String("waits_for", waitNames[oldest.kind]), slog.Duration("since", waited), slog.Int("deliveries", len(w.open)))
	}
	w.arm(logEvery - now.Sub(w.logged))
}

// ages returns how long a delivery has waited at most, by kind.
func (w *waits) ages(now time.Time) (ages [waitKinds]time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d := range w.open {
		ages[d.kind] = max(ages[d.kind], now.Sub(d.since))
	}
	return ages
}

// A collector has the gauge of the listeners of a registry.
type collector struct {
	desc *prometheus.Desc

	mu        sync.Mutex // guards all below
	listeners map[[2]string][]*waits
}

// newCollector returns the collector of a registry, nil for a new one of none.
func newCollector(r prometheus.Registerer) (*collector, error) {
	c := &collector{
		desc: prometheus.NewDesc("dedup_listener_oldest_wait_seconds", "How long a delivery that has not returned has waited for the store or its handler, at most.",
			[]string{"consumer_scope_id", "queue", "waits_for"}, nil),
		listeners: make(map[[2]string][]*waits),
	}
	if r == nil {
		return c, nil
	}
	err := r.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if shared, ok := there.ExistingCollector.(*collector); ok {
			return shared, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("hapax: listener: registering metrics: %w", err)
	}
	return c, nil
}

// add adds a listener. Those of one queue share their series.
func (c *collector) add(scope, queue string, w *waits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{label(scope), label(queue)}
	c.listeners[key] = append(c.listeners[key], w)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for key, listeners := range c.listeners {
		var most [waitKinds]time.Duration
		for _, w := range listeners {
			for kind, age := range w.ages(now) {
				most[kind] = max(most[kind], age)
			}
		}
		for kind, age := range most {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, age.Seconds(), key[0], key[1], waitNames[kind])
		}
	}
}
