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
	ids         *prometheus.CounterVec
	times       *prometheus.CounterVec
	badTimes    *prometheus.CounterVec
	attempts    *prometheus.CounterVec
	reopened    *prometheus.CounterVec
	letters     *prometheus.CounterVec
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
	labels := prometheus.Labels{"group": c.opt.Group}
	if c.opt.InstanceID != "" {
		labels["member"] = c.opt.InstanceID
	}
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
	m.ids = counter("ids_total", "Ids by the rule that found them.", "topic", "rule")
	m.times = counter("times_total", "Event times by the rule that found them.", "topic", "rule")
	m.badTimes = counter("unreadable_times_total", "Times in headers or payloads that could not be read; another rule found one.", "topic")
	m.attempts = counter("failed_attempts_total", "Attempts of a handler that failed.", "topic")
	m.reopened = counter("reopened_total", "Replays of dead letters that were handled.", "topic")
	m.letters = counter("dead_letters_total", "Records that became dead letters, by reason.", "topic", "reason")
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
	for _, col := range []prometheus.Collector{m.records, m.unclaimed, m.ids, m.times, m.badTimes, m.attempts, m.reopened, m.letters, m.lost, m.fenced, m.paused,
		m.stops, m.fetchErrors, m.batchSize, m.handler, m.commits, newGauges(c, labels)} {
		if err := r.Register(col); err != nil {
			m.unregister()
			return nil, fmt.Errorf("hapax: registering metrics; consumers of one group that share a registry need an Options.InstanceID each: %w", err)
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

// batch counts a batch that committed.
func (m *metrics) batch(topic string, o *outcome, took time.Duration) {
	for v, n := range o.verdicts {
		if n > 0 {
			m.records.WithLabelValues(topic, engine.Verdict(v).String()).Add(float64(n))
		}
	}
	for rule, n := range o.idRules {
		if n > 0 {
			m.ids.WithLabelValues(topic, IDRule(rule).String()).Add(float64(n))
		}
	}
	for rule, n := range o.tmRules {
		if n > 0 {
			m.times.WithLabelValues(topic, TimeRule(rule).String()).Add(float64(n))
		}
	}
	if o.badTimes > 0 {
		m.badTimes.WithLabelValues(topic).Add(float64(o.badTimes))
	}
	if o.unclaim > 0 {
		m.unclaimed.WithLabelValues(topic).Add(float64(o.unclaim))
	}
	if o.reopened > 0 {
		m.reopened.WithLabelValues(topic).Add(float64(o.reopened))
	}
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
	c                                 *Consumer
	lag, holdAge, batchAge, isStopped *prometheus.Desc
}

func newGauges(c *Consumer, labels prometheus.Labels) *gauges {
	desc := func(name, help string, names ...string) *prometheus.Desc {
		return prometheus.NewDesc("dedup_kafka_"+name, help, names, labels)
	}
	return &gauges{c,
		desc("lag_records", "Records between the store's offset and the last stable offset, as of the last fetch.", "topic", "partition"),
		desc("hold_age_seconds", "How far back the weeks reach that the partition keeps from expiring; expiry is held back where that is more than the retention.", "topic", "partition"),
		desc("batch_age_seconds", "How long the present batch has been under way, its handlers included; 0 between batches. It grows while a handler hangs.", "topic", "partition"),
		desc("partition_stopped", "1 for each partition that is assigned and not read, by reason.", "topic", "partition", "reason"),
	}
}

// Describe is part of prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.lag
	ch <- g.holdAge
	ch <- g.batchAge
	ch <- g.isStopped
}

// Collect is part of prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	for _, p := range g.c.partitions() {
		n := strconv.Itoa(int(p.pos.Partition))
		ch <- prometheus.MustNewConstMetric(g.lag, prometheus.GaugeValue, float64(max(0, p.stable.Load()-p.nextOut.Load())), p.pos.Topic, n)
		ch <- prometheus.MustNewConstMetric(g.batchAge, prometheus.GaugeValue, p.batchAge().Seconds(), p.pos.Topic, n)
		if at := p.heldAt(); !at.IsZero() {
			ch <- prometheus.MustNewConstMetric(g.holdAge, prometheus.GaugeValue, time.Since(at).Seconds(), p.pos.Topic, n)
		}
	}
	for _, e := range g.c.Stopped() {
		ch <- prometheus.MustNewConstMetric(g.isStopped, prometheus.GaugeValue, 1, e.Topic, strconv.Itoa(int(e.Partition)), e.Reason)
	}
}

// tell logs what a batch that committed has to say of its records.
func (p *partition) tell(o *outcome) {
	for i := range o.notes {
		n := &o.notes[i]
		level, text := slog.LevelWarn, ""
		switch {
		case n.verdict == engine.Duplicate:
			level, text = p.c.opt.DuplicateLevel.Level(), "duplicate skipped"
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
}

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
