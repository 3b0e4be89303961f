package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/internal/reach"
)

// metrics are those of the package documentation.
type metrics struct {
	sent, failed, leaseLost prometheus.Counter
	registered              []func() bool
}

func newMetrics(read func(ctx context.Context) (figures, error), watch *reach.Watch, registerer prometheus.Registerer) (*metrics, error) {
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
	for _, c := range []prometheus.Collector{m.sent, m.failed, m.leaseLost, newGauges(read, watch)} {
		if err := registerer.Register(c); err != nil {
			m.unregister()
			return nil, fmt.Errorf("hapax: outbox: registering metrics: give each relay that shares a registry its own label (prometheus.WrapRegistererWith): %w", err)
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
	read                         func(ctx context.Context) (figures, error)
	pending, due, oldest, parked *prometheus.Desc
	bytes, maxBytes, held        *prometheus.Desc
	watch                        *reach.Watch
	connection                   *prometheus.Desc
}

func newGauges(read func(ctx context.Context) (figures, error), watch *reach.Watch) *gauges {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("dedup_outbox_"+name, help, nil, nil)
	}
	return &gauges{
		read:    read,
		watch:   watch,
		pending: desc("pending_messages", "Messages in the outbox that are not parked."),
		due:     desc("due_messages", "Pending messages whose due time has come."),
		oldest:  desc("oldest_due_age_seconds", "Time since the oldest pending message was due; 0 if none is due."),
		parked:  desc("parked_messages", "Messages parked after repeated rejections."),

		bytes:    desc("size_bytes", "Size of the messages in the outbox, parked ones included."),
		maxBytes: desc("max_size_bytes", "Size at which producing another message fails."),
		held:     desc("held_partitions", "Partitions that do not answer, while others do: their messages wait."),
		connection: prometheus.NewDesc("dedup_outbox_connection", "1 for the present state of the connection to Kafka, 0 for the other states, and for all before the first attempt.",
			[]string{"state"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.pending, g.due, g.oldest, g.parked, g.bytes, g.maxBytes, g.held, g.connection} {
		ch <- d
	}
}

// scrapeTime bounds the time that a scrape waits for the store.
const scrapeTime = 2 * time.Second

// Collect implements [prometheus.Collector]. If the store does not answer, the gauges of the store are absent.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	state, cause := g.watch.State(time.Now())
	for _, s := range reach.States {
		is := 0.0
		if s == state && !errors.Is(cause, reach.ErrNothing) {
			is = 1
		}
		ch <- prometheus.MustNewConstMetric(g.connection, prometheus.GaugeValue, is, s.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	f, err := g.read(ctx)
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
	send(g.bytes, float64(f.bytes))
	send(g.maxBytes, float64(f.maxBytes))
	send(g.held, float64(f.held))
}

type figures struct {
	pending, due, parked uint64
	bytes, maxBytes      uint64
	held                 int64
	oldest               time.Duration
}
