package hapaxtest

import (
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
)

// verdicts counts the records of committed batches, by topic.
type verdicts map[string]*tally

// A tally counts the records of one topic.
type tally struct {
	judged   map[engine.Verdict]int
	unjudged int64 // records without a verdict that are done: no usable id, or their handler failed for good
}

// total is the number of records that are done.
func (t *tally) total() int64 {
	n := t.unjudged
	for _, judged := range t.judged {
		n += int64(judged)
	}
	return n
}

func (v verdicts) add(more verdicts) {
	for topic, t := range more {
		v[topic].unjudged += t.unjudged
		for verdict, n := range t.judged {
			v[topic].judged[verdict] += n
		}
	}
}

// verdicts reads the metrics of the consumer. Each record of a committed batch is in one of these
// series, and those of a failed handler are in the last one.
func (l *life) verdicts(t testing.TB, topics []string) verdicts {
	t.Helper()
	v := verdicts{}
	for _, topic := range topics {
		v[topic] = &tally{judged: map[engine.Verdict]int{}}
	}
	l.each(t, "dedup_kafka_records_total", func(labels map[string]string, n float64) {
		for _, verdict := range engine.Verdicts {
			if verdict.String() == labels["outcome"] && n > 0 {
				v[labels["topic"]].judged[verdict] = int(n)
			}
		}
	})
	l.each(t, "dedup_kafka_skipped_total", func(labels map[string]string, n float64) {
		if labels["reason"] == string(deadletter.Undecodable) {
			v[labels["topic"]].unjudged += int64(n)
		}
	})
	l.each(t, "dedup_kafka_dead_letters_total", func(labels map[string]string, n float64) {
		switch deadletter.Reason(labels["reason"]) {
		case deadletter.Undecodable, deadletter.Permanent, deadletter.Attempts:
			v[labels["topic"]].unjudged += int64(n)
		}
	})
	return v
}

// dueMessages returns the number of messages that the relay has not published although they are due.
func (l *life) dueMessages(t testing.TB) (due float64) {
	t.Helper()
	l.each(t, "dedup_outbox_due_messages", func(_ map[string]string, n float64) { due = n })
	return due
}

// each calls fn for each series of a metric.
func (l *life) each(t testing.TB, name string, fn func(labels map[string]string, value float64)) {
	t.Helper()
	families, err := l.metrics.Gather()
	if err != nil && l.eng.Err() == nil { // the metrics of a failed store are incomplete
		t.Fatal("hapaxtest: reading metrics: ", err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			fn(labelsOf(series), series.GetCounter().GetValue()+series.GetGauge().GetValue())
		}
	}
}

func labelsOf(series *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range series.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}
