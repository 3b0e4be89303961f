package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/entry"
)

// metrics are those of the package documentation.
type metrics struct {
	sent, failed, leaseLost prometheus.Counter
	registered              []func() bool
}

func newMetrics(r *Relay, registerer prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "dedup_outbox_" + name, Help: help})
	}
	m := &metrics{
		sent:      counter("sent_total", "Messages that the broker has acknowledged."),
		failed:    counter("failed_total", "Failed attempts to publish a message."),
		leaseLost: counter("lease_lost_total", "Leases lost to another relay."),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.sent, m.failed, m.leaseLost, newGauges(r)} {
		if err := registerer.Register(c); err != nil {
			m.unregister()
			return nil, fmt.Errorf("outbox: registering metrics: give each relay that shares a registry its own label (prometheus.WrapRegistererWith): %w", err)
		}
		m.registered = append(m.registered, func() bool { return registerer.Unregister(c) })
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, unregister := range m.registered {
		unregister()
	}
	m.registered = nil
}

// gauges read their values from the store at each scrape.
type gauges struct {
	r                            *Relay
	pending, due, oldest, parked *prometheus.Desc
}

func newGauges(r *Relay) *gauges {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("dedup_outbox_"+name, help, nil, nil)
	}
	return &gauges{
		r:       r,
		pending: desc("pending_messages", "Messages in the outbox that are not parked."),
		due:     desc("due_messages", "Pending messages whose due time has come."),
		oldest:  desc("oldest_due_age_seconds", "Time since the oldest pending message was due; 0 if none is due."),
		parked:  desc("parked_messages", "Messages parked after repeated rejections."),
	}
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.pending, g.due, g.oldest, g.parked} {
		ch <- d
	}
}

// scrapeTime bounds the time that a scrape waits for the store.
const scrapeTime = 2 * time.Second

// Collect implements [prometheus.Collector]. If the store does not answer, the gauges are absent.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	f, err := g.r.figures(ctx)
	if err != nil {
		return
	}
	send := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	send(g.pending, float64(f.pending))
	send(g.due, float64(f.due))
	send(g.oldest, f.oldest.Seconds())
	send(g.parked, float64(f.parked))
}

type figures struct {
	pending, due, parked uint64
	oldest               time.Duration
}

// maxDueCounted is the maximum number of delayed entries that have become due and are counted one
// by one.
const maxDueCounted = 10_000

func (r *Relay) figures(ctx context.Context) (f figures, err error) {
	space := r.eng.In(entry.Space)
	// Gone is read first, so that concurrent commits can only increase the result.
	var gone entry.Gone
	if value, found, err := space.Get(ctx, entry.GoneKey); err != nil {
		return f, err
	} else if found {
		if gone, err = entry.ParseGone(value); err != nil {
			return f, damaged(err)
		}
	}
	var produced entry.Produced
	if value, found, err := space.Get(ctx, entry.ProducedKey); err != nil {
		return f, err
	} else if found {
		if produced, err = entry.ParseProduced(value); err != nil {
			return f, damaged(err)
		}
	}
	f.parked = gone.Parked - gone.Redriven - gone.Dropped
	f.pending = produced.Entries + gone.Redriven - gone.Entries
	f.due = f.pending - min(f.pending, produced.Delayed+gone.Redriven-gone.Delayed)
	now := r.opt.Clock.Now().UnixMilli()
	oldest := r.due.Load()
	add := func(due int64) {
		if oldest == 0 || due < oldest {
			oldest = due
		}
	}
	for kv, err := range space.Scan(ctx, r.ready()) {
		if err != nil {
			return f, err
		}
		e, err := parse(kv)
		if err != nil {
			return f, err
		}
		add(e.Due)
		break
	}
	counted := 0
	for kv, err := range space.Scan(ctx, engine.Range{Prefix: entry.DelayedPrefix}) {
		if err != nil {
			return f, err
		}
		due, err := entry.DelayedDue(kv.Key)
		if err != nil {
			return f, damaged(err)
		}
		if due > now || counted == maxDueCounted {
			break
		}
		add(due)
		counted++
	}
	f.due = min(f.due+uint64(counted), f.pending)
	if oldest > 0 {
		f.oldest = time.Duration(max(now-oldest, 0)) * time.Millisecond
	}
	return f, nil
}
