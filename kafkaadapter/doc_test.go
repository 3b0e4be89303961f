package kafkaadapter

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// recorded keeps the metrics that are registered with it, as name{labels}.
type recorded map[string]bool

var described = regexp.MustCompile(`fqName: "([a-z_]+)".* variableLabels: \{([a-z,]*)\}`)

func (r recorded) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		r[m[1]+"{"+m[2]+"}"] = true
	}
	return nil
}

func (recorded) MustRegister(...prometheus.Collector)   {}
func (recorded) Unregister(_ prometheus.Collector) bool { return true }

func TestTheDocumentationListsTheMetrics(t *testing.T) {
	registered := recorded{}
	if _, err := newMetrics(&Options{Group: "g"}, registered, newConsumer(Options{}).gauges); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(dedup_kafka_\w+) +(?:counter|gauge|histogram) +((?:\w+, )*\w+|-)  `).FindAllStringSubmatch(string(source), -1) {
		listed[m[1]+"{"+strings.ReplaceAll(strings.Trim(m[2], "-"), ", ", ",")+"}"] = true
	}
	if got, want := slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(registered)); !slices.Equal(got, want) {
		t.Errorf("doc.go lists\n%s\nregistered are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
