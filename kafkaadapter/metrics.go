package kafkaadapter

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
)

// metrics are those of the package documentation.
type metrics struct {
	registered []func() bool

	records     *prometheus.CounterVec
	unclaimed   *prometheus.CounterVec
	unprotected *prometheus.CounterVec
	ids         *prometheus.CounterVec
	times       *prometheus.CounterVec
	badTimes    *prometheus.CounterVec
	attempts    *prometheus.CounterVec
	reopened    *prometheus.CounterVec
	letters     *prometheus.CounterVec
	skipped     *prometheus.CounterVec
	lost        *prometheus.CounterVec
	fenced      *prometheus.CounterVec
	paused      *prometheus.CounterVec
	stops       *prometheus.CounterVec
	fetchErrors *prometheus.CounterVec
	batchSize   *prometheus.HistogramVec
	handler     *prometheus.HistogramVec
	commits     *prometheus.HistogramVec
}

func newMetrics(c *Consumer, r prometheus.Registerer) (*metrics, error) {
	m := &metrics{}
	labels := prometheus.Labels{"group": c.opt.Group, "member": c.opt.Membership.label()} // the same names for all members
	counter := func(name, help string, names ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dedup_kafka_" + name, Help: help, ConstLabels: labels}, names)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dedup_kafka_" + name, Help: help, ConstLabels: labels,
			Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}, []string{"topic"})
	}
	seconds := prometheus.ExponentialBuckets(0.0005, 4, 9)
	m.records = counter("records_total", "Records by what the engine said of them.", "topic", "outcome")
	m.unclaimed = counter("unclaimed_total", "Records that were handled without a claim, by policy.", "topic")
	m.unprotected = counter("unprotected_total", "Records that were handled without a claim because the store was away.", "topic")
	m.ids = counter("ids_total", "Ids by the rule that found them.", "topic", "rule")
	m.times = counter("times_total", "Event times by the rule that found them.", "topic", "rule")
	m.badTimes = counter("unreadable_times_total", "Times in headers or payloads that could not be read; another rule found one.", "topic")
	m.attempts = counter("failed_attempts_total", "Attempts of a handler that failed.", "topic")
	m.reopened = counter("reopened_total", "Replays of dead letters that were handled.", "topic")
	m.letters = counter("dead_letters_total", "Records that became dead letters, by reason.", "topic", "reason")
	m.skipped = counter("skipped_total", "Records that were acknowledged unhandled, by policy and reason.", "topic", "reason")
	m.lost = counter("lost_total", "Events that were claimed by own-commit and whose handler failed or was cut off.", "topic")
	m.fenced = counter("fenced_total", "Batches that were dropped because the partition had gone to another owner.", "topic")
	m.paused = counter("paused_total", "Pauses of fetching because a partition's worker had enough to do.", "topic")
	m.stops = counter("stops_total", "Stops of a partition, by reason.", "topic", "reason")
	m.fetchErrors = counter("fetch_errors_total", "Errors of the client's fetches.", "topic")
	m.batchSize = histogram("batch_records", "Records in one batch of the store.", prometheus.ExponentialBuckets(1, 4, 8))
	m.handler = histogram("handler_seconds", "Time in the handler, by batch.", seconds)
	m.commits = histogram("commit_seconds", "Time to judge and commit a batch, without the handler.", seconds)
	if r == nil {
		return m, nil
	}
	for _, col := range []prometheus.Collector{m.records, m.unclaimed, m.unprotected, m.ids, m.times, m.badTimes, m.attempts, m.reopened, m.letters, m.skipped, m.lost, m.fenced, m.paused,
		m.stops, m.fetchErrors, m.batchSize, m.handler, m.commits, newGauges(c, labels)} {
		if err := r.Register(col); err != nil {
			m.unregister()
			return nil, fmt.Errorf("hapax: registering metrics; consumers of one group that share a registry need an Options.Membership.InstanceID, or a Pinned.Ordinal, each: %w", err)
		}
		m.registered = append(m.registered, func() bool { return r.Unregister(col) })
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, undo := range m.registered {
		undo()
	}
	m.registered = nil
}

// batch counts a batch that committed, apart from its tally.
func (m *metrics) batch(topic string, o *batch, took time.Duration) {
	if o.failed != nil {
		m.attempts.WithLabelValues(topic).Inc()
	}
	m.batchSize.WithLabelValues(topic).Observe(float64(o.done))
	m.commits.WithLabelValues(topic).Observe((took - o.handling).Seconds())
	if o.handling > 0 {
		m.handler.WithLabelValues(topic).Observe(o.handling.Seconds())
	}
}

// gauges are looked up when they are asked for, from the partitions that are assigned then.
type gauges struct {
	c                                                            *Consumer
	lag, stableLag, holdAge, batchAge, isPaused, isStopped, away *prometheus.Desc
}

func newGauges(c *Consumer, labels prometheus.Labels) *gauges {
	desc := func(name, help string, names ...string) *prometheus.Desc {
		return prometheus.NewDesc("dedup_kafka_"+name, help, names, labels)
	}
	return &gauges{c,
		desc("lag_records", "Offsets between the store's and the end of the log.", "topic", "partition"),
		desc("stable_lag_records", "Offsets between the store's and the last stable offset: what can be read now. Smaller than the lag while a transaction is open.", "topic", "partition"),
		desc("hold_age_seconds", "How far back the weeks reach that the partition keeps from expiring; expiry is held back where that is more than the retention.", "topic", "partition"),
		desc("batch_age_seconds", "How long the present batch has been under way, its handlers included; 0 between batches. It grows while a handler hangs.", "topic", "partition"),
		desc("partition_paused", "1 for each partition that is assigned and that the application has paused.", "topic", "partition"),
		desc("partition_stopped", "1 for each partition that is assigned and not read, by reason.", "topic", "partition", "reason"),
		desc("unprotected", "1 while the store is away and records are handled without claims, 0 otherwise."),
	}
}

// Describe is part of prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.lag
	ch <- g.stableLag
	ch <- g.holdAge
	ch <- g.batchAge
	ch <- g.isPaused
	ch <- g.isStopped
	ch <- g.away
}

// Collect is part of prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	away := 0.0
	if _, err := g.c.links.get(); err != nil {
		away = 1
	}
	ch <- prometheus.MustNewConstMetric(g.away, prometheus.GaugeValue, away)
	for _, p := range g.c.partitions() {
		n := strconv.Itoa(int(p.pos.Partition))
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{p.pos.Topic, n}, labels...)...)
		}
		next := p.offsets.next()
		gauge(g.lag, float64(max(0, p.ends.end.Load()-next)))
		gauge(g.stableLag, float64(max(0, p.ends.stable.Load()-next)))
		gauge(g.batchAge, p.batchAge().Seconds())
		if at := p.heldAt(); !at.IsZero() {
			gauge(g.holdAge, time.Since(at).Seconds())
		}
		if p.isPaused() {
			gauge(g.isPaused, 1)
		}
		if e := p.status().stop; e != nil {
			gauge(g.isStopped, 1, e.Reason)
		}
	}
}

// tell logs what a batch that committed has to say of its records.
func (p *partition) tell(o *batch) {
	left := 0 // out of the log
	for i := range o.notes {
		n := &o.notes[i]
		if i >= maxNotes && n.verdict != engine.Duplicate {
			left++
			continue
		}
		level, text := slog.LevelWarn, ""
		switch {
		case n.verdict == engine.Duplicate:
			level, text = p.c.opt.Telemetry.DuplicateLevel.Level(), "duplicate skipped"
		case n.policy == "retry":
			text = "handling failed; the record is tried again"
		case n.policy == "dead_letter":
			text = "put among the dead letters"
		case n.policy == "process":
			text = "handled without a claim"
		default:
			text = "rejected"
		}
		if !p.log.Enabled(p.ctx, level) {
			continue
		}
		args := []any{"offset", n.rec.Offset, "id", idText(n.event.ID), "time", n.event.Time}
		if n.verdict == engine.Duplicate {
			args = append(args, "first_seen", n.record.FirstSeen, "first_origin", n.record.Origin.String(), "state", n.record.State.String())
		} else {
			args = append(args, "verdict", n.verdict.String())
		}
		if n.err != nil {
			args = append(args, "error", n.err)
			if panicked := (*PanicError)(nil); errors.As(n.err, &panicked) {
				args = append(args, "stack", string(panicked.Stack))
			}
		}
		p.log.Log(p.ctx, level, text, args...)
	}
	if left > 0 {
		p.log.Warn("more records of the batch are dead letters or were rejected", "records", left, "next", o.next)
	}
}

// maxNotes is how many records of one batch are logged one by one.
const maxNotes = 16

// idText shows an id in a log, shortened and with what is not text escaped.
func idText(id []byte) string {
	const most = 128
	if len(id) > most {
		return strconv.Quote(string(id[:most])) + "..."
	}
	s := string(id)
	if q := strconv.Quote(s); q[1:len(q)-1] != s {
		return q
	}
	return s
}
