package kafkaadapter

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/internal/kafkatest"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
)

func TestMetricsAreWellFormedAndCorrect(t *testing.T) {
	r := newRig(t, 1)
	r.send(t, 0, "a", "b", "a", "poison", "c")
	m := r.start(t, r.work(2, failing(errHandler, "poison")))
	r.untilStored(t, 0, 5)
	kafkatest.Until(t, "the dead letter", func() bool { return m.metric(t, "dead_letters_total") == 1 })
	kafkatest.Until(t, "the newest figures", func() bool { return m.metric(t, "records_total", "duplicate") == 1 })
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"records_total", []string{"claimed"}, 3},
		{"records_total", []string{"duplicate"}, 1},
		{"failed_attempts_total", nil, 2},
		{"dead_letters_total", []string{"attempts"}, 1},
		{"lost_total", nil, 0},
		{"fenced_total", nil, 0},
		{"partition_stopped", nil, 0},
		{"lag_records", nil, 0},
	} {
		m.counts(t, tt.want, tt.name, tt.labels...)
	}
	for _, name := range []string{"batch_records", "handler_seconds", "commit_seconds"} {
		if m.metric(t, name) == 0 {
			t.Errorf("%s has no sample", name)
		}
	}
	problems, err := testutil.GatherAndLint(m.reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	families, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "dedup_kafka_") {
			t.Errorf("%s", f.GetName())
		}
		for _, x := range f.GetMetric() {
			if !slices.ContainsFunc(x.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "group" && l.GetValue() == r.group }) {
				t.Errorf("%s has no group", f.GetName())
			}
		}
	}
	m.stop(t)
}

// An alert on the increase of a counter misses what is counted before the series exists.
func TestCountersExistBeforeTheirFirstEvent(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := someOptions()
	o.Telemetry.Registerer, o.Routes[0].DeadLetters = reg, &deadletter.Options{}
	if _, err := New(memEngine(t), o); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		if f.GetType() == dto.MetricType_COUNTER {
			series[strings.TrimPrefix(f.GetName(), "dedup_kafka_")] = len(f.GetMetric())
		}
	}
	for name, want := range map[string]int{
		"records_total": len(engine.Verdicts), "unclaimed_total": 1, "unprotected_total": 1, "ids_total": len(identify.IDRules), "times_total": len(identify.TimeRules),
		"unreadable_times_total": 1, "failed_attempts_total": 1, "reopened_total": 1, "refused_replays_total": len(deadletter.Refusals), "dead_letters_total": len(deadletter.Reasons),
		"skipped_total": len(rejectReasons), "lost_total": 1, "fenced_total": 1, "paused_total": 1, "stops_total": len(stopReasons), "fetch_errors_total": 1,
	} {
		if series[name] != want {
			t.Errorf("%s has %d series, want %d", name, series[name], want)
		}
		delete(series, name)
	}
	if len(series) > 0 {
		t.Errorf("not tested: %v", series)
	}
}

func TestTwoConsumersOfAGroupShareARegistryByTheirInstance(t *testing.T) {
	eng, reg := memEngine(t), prometheus.NewRegistry()
	o := someOptions()
	o.Telemetry.Registerer = reg
	for _, tt := range []struct {
		instance string
		fails    bool
	}{{"one", false}, {"two", false}, {"one", true}} {
		o.Membership.instanceID = tt.instance
		_, err := New(eng, o)
		if (err != nil) != tt.fails || err != nil && !strings.Contains(err.Error(), "Options.Membership") {
			t.Errorf("%s: %v", tt.instance, err)
		}
	}
}

func TestHandlerThatHangsShowsInTheAgeOfItsBatch(t *testing.T) {
	own := func(r *rig) (mode Mode, began, release chan struct{}) {
		began, release = make(chan struct{}), make(chan struct{})
		return AtMostOnce(func(context.Context, *Record) error {
			close(began)
			<-release
			return nil
		}), began, release
	}
	work := func(r *rig) (Mode, chan struct{}, chan struct{}) {
		mode, began, release, _ := r.stuck("a")
		return mode, began, release
	}
	for name, mode := range map[string]func(*rig) (Mode, chan struct{}, chan struct{}){"own": own, "work": work} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			hanging, began, release := mode(r)
			m := r.start(t, hanging)
			r.send(t, 0, "a")
			kafkatest.Receive(t, began)
			first := m.metric(t, "batch_age_seconds")
			kafkatest.Until(t, "the batch to grow older", func() bool { return m.metric(t, "batch_age_seconds") > first })
			close(release)
			kafkatest.Until(t, "the end of the batch", func() bool { return m.metric(t, "batch_age_seconds") == 0 })
			m.stop(t)
		})
	}
}

func TestStaticAndDynamicConsumersShareARegistry(t *testing.T) {
	eng, reg := memEngine(t), prometheus.NewRegistry()
	for group, instance := range map[string]string{"static": "one", "dynamic": ""} {
		o := someOptions()
		o.Group, o.Membership.instanceID, o.Telemetry.Registerer = group, instance, reg
		if _, err := New(eng, o); err != nil {
			t.Errorf("%s: %v", group, err)
		}
	}
}

func TestPinnedConsumersShareARegistryByTheirIndex(t *testing.T) {
	reg := prometheus.NewRegistry()
	for _, tt := range []struct {
		ordinal int
		fails   bool
	}{{0, false}, {1, false}, {0, true}} {
		o := someOptions()
		o.Membership.pinned, o.Telemetry.Registerer = fixedShare{tt.ordinal, 2}, reg
		_, err := New(memEngine(t), o)
		if (err != nil) != tt.fails || err != nil && !strings.Contains(err.Error(), "Options.Membership") {
			t.Errorf("ordinal %d: %v", tt.ordinal, err)
		}
	}
}
