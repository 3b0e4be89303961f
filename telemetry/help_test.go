package telemetry_test

import (
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

type family = dto.MetricFamily

// metrics gathers all metrics, which must not fail, and returns the series of one name.
func metrics(t testing.TB, g prometheus.Gatherer, name string) []*dto.Metric {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

var types = regexp.MustCompile(`(?m)^# TYPE (\S+) `)

// withHelp puts an empty HELP before each TYPE, as in gathered metrics.
func withHelp(text string) string {
	return types.ReplaceAllString(text, "# HELP $1 \n$0")
}
