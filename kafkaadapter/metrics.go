package kafkaadapter

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
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
	refused     *prometheus.CounterVec
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

func newMetrics(opt *Options, r prometheus.Registerer, gauges func(prometheus.Labels) prometheus.Collector) (*metrics, error) {
	m := &metrics{}
	labels := prometheus.Labels{"group": opt.Group, "member": opt.Membership.label()} // the same names for all members
	counter := func(name, help string, names ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dedup_kafka_" + name, Help: help, ConstLabels: labels}, names)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "dedup_kafka_" + name, Help: help, ConstLabels: labels,
			Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}, []string{"topic"})
	}
	seconds := prometheus.ExponentialBuckets(0.0005, 4, 9)
	m.records = counter("records_total", "Records of committed batches, by verdict.", "topic", "outcome")
	m.unclaimed = counter("unclaimed_total", "Records that were handled without a claim, by policy.", "topic")
	m.unprotected = counter("unprotected_total", "Records that were handled without a claim because the store was unavailable.", "topic")
	m.ids = counter("ids_total", "Ids by the rule that found them.", "topic", "rule")
	m.times = counter("times_total", "Event times by the rule that found them.", "topic", "rule")
	m.badTimes = counter("unreadable_times_total", "Times in headers or payloads that could not be parsed; another rule found the time.", "topic")
	m.attempts = counter("failed_attempts_total", "Failed attempts of handlers.", "topic")
	m.reopened = counter("reopened_total", "Replays of dead letters that were handled.", "topic")
	m.refused = counter("refused_replays_total", "Records with the headers of a dead letter that are judged by their own id, by reason.", "topic", "reason")
	m.letters = counter("dead_letters_total", "Dead letters that the broker has acknowledged, by reason.", "topic", "reason")
	m.skipped = counter("skipped_total", "Records acknowledged without handling, by reason.", "topic", "reason")
	m.lost = counter("lost_total", "Events claimed by AtMostOnce whose handler failed or was cut off.", "topic")
	m.fenced = counter("fenced_total", "Batches dropped because the partition had another owner.", "topic")
	m.paused = counter("paused_total", "Pauses of fetching because a partition's worker had enough queued records.", "topic")
	m.stops = counter("stops_total", "Stops of a partition, by reason.", "topic", "reason")
	m.fetchErrors = counter("fetch_errors_total", "Errors of the client's fetches.", "topic")
	m.batchSize = histogram("batch_records", "Records in one batch of the store.", prometheus.ExponentialBuckets(1, 4, 8))
	m.handler = histogram("handler_seconds", "Time in the handler, by batch.", seconds)
	m.commits = histogram("commit_seconds", "Time to claim and commit a batch, without the handler.", seconds)
	m.begin(opt.Routes)
	if r == nil {
		return m, nil
	}
	for _, col := range []prometheus.Collector{m.records, m.unclaimed, m.unprotected, m.ids, m.times, m.badTimes, m.attempts, m.reopened, m.refused, m.letters, m.skipped, m.lost, m.fenced, m.paused,
		m.stops, m.fetchErrors, m.batchSize, m.handler, m.commits, gauges(labels)} {
		if err := r.Register(col); err != nil {
			m.unregister()
			return nil, fmt.Errorf("hapax: registering metrics: give each consumer of a group that shares a registry its own Options.Membership, Static or Pinned: %w", err)
		}
		m.registered = append(m.registered, func() bool { return r.Unregister(col) })
	}
	return m, nil
}

// stopReasons are the reasons of a StopError.
var stopReasons = [...]string{"position", "dead_letter", "undecodable", "mismatch", "large_batch", "topic_gone", "unauthorized", "unreachable", "unreadable",
	"gap", "fetch_error", "silent", "offset_commit", "fenced", "store", "changelog", "limit", "damaged", "transient", "conflict", "in_flight", "failing", "handler", "commit", "lost"}

// begin makes each series of a counter, with the value 0. An alert on the increase of a counter misses
// what is counted before Prometheus has seen the series.
func (m *metrics) begin(routes []Route) {
	for i := range routes {
		for _, topic := range routes[i].Topics {
			m.beginTopic(topic, &routes[i])
		}
	}
}

func (m *metrics) beginTopic(topic string, route *Route) {
	for _, vec := range []*prometheus.CounterVec{m.unclaimed, m.unprotected, m.badTimes, m.attempts, m.reopened, m.lost, m.fenced, m.paused, m.fetchErrors} {
		vec.WithLabelValues(topic)
	}
	each(m.records, topic, engine.Verdicts[:], engine.Verdict.String)
	each(m.ids, topic, identify.IDRules[:], identify.IDRule.String)
	each(m.times, topic, identify.TimeRules[:], identify.TimeRule.String)
	each(m.refused, topic, deadletter.Refusals[:], func(r deadletter.Refusal) string { return string(r) })
	each(m.skipped, topic, rejectReasons[:], func(r deadletter.Reason) string { return string(r) })
	each(m.stops, topic, stopReasons[:], func(r string) string { return r })
	if route.DeadLetters != nil {
		each(m.letters, topic, deadletter.Reasons[:], func(r deadletter.Reason) string { return string(r) })
	}
}

// each makes the series of a topic for each value of the second label.
func each[T any](vec *prometheus.CounterVec, topic string, values []T, label func(T) string) {
	for _, v := range values {
		vec.WithLabelValues(topic, label(v))
	}
}

func (m *metrics) unregister() {
	for _, undo := range m.registered {
		undo()
	}
	m.registered = nil
}

// batch counts a batch that committed, apart from its tally.
func (m *metrics) batch(topic string, done int, failed bool, handling, took time.Duration) {
	if failed {
		m.attempts.WithLabelValues(topic).Inc()
	}
	m.batchSize.WithLabelValues(topic).Observe(float64(done))
	m.commits.WithLabelValues(topic).Observe((took - handling).Seconds())
	if handling > 0 {
		m.handler.WithLabelValues(topic).Observe(handling.Seconds())
	}
}

// A tally counts the outcome of the records of a batch. The metrics add it when it is final: with
// the batch, or with AtMostOnce when it is known which of its records stay in the batch.
type tally struct {
	verdicts    [len(engine.Verdicts) + 1]uint32
	idRules     [len(identify.IDRules) + 1]uint32
	timeRules   [len(identify.TimeRules) + 1]uint32
	badTimes    uint32                     // times that could not be read
	reopened    uint32                     // replays of dead letters that are handled
	unclaimed   uint32                     // handled without a claim
	unprotected uint32                     // of those, because the store was unavailable
	rejected    [len(rejectReasons)]uint32 // acknowledged unhandled, by policy
	refused     [len(deadletter.Refusals)]uint32
}

// rejectReasons are the reasons for which a policy may reject a record.
var rejectReasons = [...]deadletter.Reason{deadletter.Undecodable, deadletter.TooOld, deadletter.TooNew, deadletter.Mismatch}

// identified counts by which rules a completed record was identified.
func (t *tally) identified(s *sighting) {
	if s.delivery != nil && s.err == nil {
		t.idRules[s.delivery.idRule]++
		t.timeRules[s.delivery.timeRule]++
		t.badTimes += uint32(s.badTimes)
	}
	for i, reason := range deadletter.Refusals {
		if s.delivery != nil && reason == s.refused {
			t.refused[i]++
		}
	}
}

// handled counts a record whose handling is part of the batch.
func (t *tally) handled(r *delivery) {
	t.verdicts[r.Verdict]++
	if r.Verdict != engine.Claimed {
		t.unclaimed++
	}
	if r.Reopened {
		t.reopened++
	}
}

// reject counts a record that is acknowledged unhandled.
func (t *tally) reject(why deadletter.Reason) {
	for i, reason := range rejectReasons {
		if reason == why {
			t.rejected[i]++
		}
	}
}

// add adds another tally.
func (t *tally) add(more *tally) {
	addEach(t.verdicts[:], more.verdicts[:])
	addEach(t.idRules[:], more.idRules[:])
	addEach(t.timeRules[:], more.timeRules[:])
	addEach(t.rejected[:], more.rejected[:])
	addEach(t.refused[:], more.refused[:])
	t.badTimes += more.badTimes
	t.reopened += more.reopened
	t.unclaimed += more.unclaimed
	t.unprotected += more.unprotected
}

func addEach(sums, more []uint32) {
	for i, n := range more {
		sums[i] += n
	}
}

// tally counts the outcome of records of a topic.
func (m *metrics) tally(topic string, t *tally) {
	for v, n := range t.verdicts {
		if n > 0 {
			m.records.WithLabelValues(topic, engine.Verdict(v).String()).Add(float64(n))
		}
	}
	for rule, n := range t.idRules {
		if n > 0 {
			m.ids.WithLabelValues(topic, identify.IDRule(rule).String()).Add(float64(n))
		}
	}
	for rule, n := range t.timeRules {
		if n > 0 && rule > 0 { // 0: none, which a window does not need
			m.times.WithLabelValues(topic, identify.TimeRule(rule).String()).Add(float64(n))
		}
	}
	for i, n := range t.rejected {
		if n > 0 {
			m.skipped.WithLabelValues(topic, string(rejectReasons[i])).Add(float64(n))
		}
	}
	for i, n := range t.refused {
		if n > 0 {
			m.refused.WithLabelValues(topic, string(deadletter.Refusals[i])).Add(float64(n))
		}
	}
	if t.badTimes > 0 {
		m.badTimes.WithLabelValues(topic).Add(float64(t.badTimes))
	}
	if t.unclaimed > 0 {
		m.unclaimed.WithLabelValues(topic).Add(float64(t.unclaimed))
	}
	if t.unprotected > 0 {
		m.unprotected.WithLabelValues(topic).Add(float64(t.unprotected))
	}
	if t.reopened > 0 {
		m.reopened.WithLabelValues(topic).Add(float64(t.reopened))
	}
}
