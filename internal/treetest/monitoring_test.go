package treetest

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/kafkaadapter"
	"github.com/hapax-dev/hapax/kafkaadapter/deadletter"
	"github.com/hapax-dev/hapax/listener"
	"github.com/hapax-dev/hapax/outbox"
	"github.com/hapax-dev/hapax/telemetry"
)

const (
	alertsFile    = "docs/monitoring/alerts.yaml"
	dashboardFile = "docs/monitoring/dashboard.json"
)

// describing is a registry that records the names of the metrics that are registered.
type describing struct {
	*prometheus.Registry
	names map[string]bool
}

var descName = regexp.MustCompile(`fqName: "([^"]+)"`)

func (d describing) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	for desc := range ch {
		d.names[descName.FindStringSubmatch(desc.String())[1]] = true
	}
	return d.Registry.Register(c)
}

func (d describing) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

// exportedMetrics returns the names of all metrics of the module.
func exportedMetrics(t *testing.T, namespace string) map[string]bool {
	t.Helper()
	d := describing{prometheus.NewRegistry(), map[string]bool{}}
	tel := telemetry.Options{Registerer: d, Namespace: namespace}
	if _, err := telemetry.New(tel); err != nil {
		t.Fatal(err)
	}
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	o := kafkaadapter.Options{
		Group:  "group",
		Client: []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")},
		Routes: []kafkaadapter.Route{{
			Topics:      []string{"topic"},
			Mode:        kafkaadapter.Transactional{Handle: func(context.Context, *engine.Tx, *kafkaadapter.Record) error { return nil }, MaxAttempts: 1},
			DeadLetters: &deadletter.Options{},
		}},
		Telemetry: tel,
	}
	if _, err := kafkaadapter.New(eng, o); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.New(eng, outbox.Options{Client: o.Client, Telemetry: tel}); err != nil {
		t.Fatal(err)
	}
	ignore := func(context.Context, string) error { return nil }
	if _, err := listener.Wrap(eng, ignore, listener.Options[string]{ID: func(m string) string { return m }, Telemetry: tel}); err != nil {
		t.Fatal(err)
	}
	return d.names
}

var (
	metricName = regexp.MustCompile(`\bdedup_\w+`)
	suffix     = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// unknownMetrics returns the names in an expression that no metric has.
func unknownMetrics(exported map[string]bool, expr string) (unknown []string) {
	for _, name := range metricName.FindAllString(expr, -1) {
		if !exported[name] && !exported[suffix.ReplaceAllString(name, "")] {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

func TestAlertsAndDashboardNameExistingMetrics(t *testing.T) {
	exported := exportedMetrics(t, "")
	if len(exported) < 40 {
		t.Errorf("%d metrics are exported: %q", len(exported), slices.Sorted(maps.Keys(exported)))
	}
	if got := unknownMetrics(exported, "rate(dedup_claims_total[5m]) / dedup_renamed + dedup_sync_duration_seconds_bucket"); !slices.Equal(got, []string{"dedup_renamed"}) {
		t.Errorf("unknown are %q", got)
	}
	exprs := regexp.MustCompile(`(?m)^\s+expr: (.+)$`).FindAllStringSubmatch(source(t, alertsFile), -1)
	if len(exprs) < 10 {
		t.Errorf("%d expressions are found in %s", len(exprs), alertsFile)
	}
	for _, m := range exprs {
		if unknown := unknownMetrics(exported, m[1]); len(unknown) > 0 {
			t.Errorf("%s: no metric has the names %q", alertsFile, unknown)
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(source(t, dashboardFile)), &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Panels) < 10 {
		t.Errorf("%d panels", len(dashboard.Panels))
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			if unknown := unknownMetrics(exported, target.Expr); len(unknown) > 0 || target.Expr == "" {
				t.Errorf("%s, %s: no metric has the names %q", dashboardFile, p.Title, unknown)
			}
		}
	}
}

// One value of telemetry.Options gives the metrics of all packages one namespace.
func TestNamespaceIsThatOfAllPackages(t *testing.T) {
	plain, named := exportedMetrics(t, ""), exportedMetrics(t, "im2be")
	for name := range plain {
		if !named["im2be_"+name] || named[name] {
			t.Errorf("%s is not im2be_%s with the namespace", name, name)
		}
	}
	if len(plain) != len(named) {
		t.Errorf("%d metrics with a namespace, %d without", len(named), len(plain))
	}
}

// Each alert and each reason of a stop has a row in docs/operations.md, and each row names an
// existing alert or reason.
func TestOperationsPageHasEachAlertAndReason(t *testing.T) {
	page := source(t, "docs/operations.md")
	var alerts, reasons []string
	for _, m := range regexp.MustCompile(`(?m)- alert: (\w+)$`).FindAllStringSubmatch(source(t, alertsFile), -1) {
		alerts = append(alerts, m[1])
	}
	compareRows(t, alerts, regexp.MustCompile(`(?m)^\| (Hapax\w+) \|`).FindAllStringSubmatch(page, -1))
	files, err := filepath.Glob("kafkaadapter/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text := source(t, file)
		for _, m := range regexp.MustCompile(`\b(?:stop|stopBefore|stopForNow|report|hinder)\("(\w+)"|stops\.WithLabelValues\([^"]*"(\w+)"\)`).FindAllStringSubmatch(text, -1) {
			reasons = append(reasons, m[1]+m[2])
		}
		for _, function := range []string{"func reasonOf(", "func hindranceOf("} {
			_, body, _ := strings.Cut(text, function)
			body, _, _ = strings.Cut(body, "\n}")
			for _, m := range regexp.MustCompile(`return "(\w+)"`).FindAllStringSubmatch(body, -1) {
				reasons = append(reasons, m[1])
			}
		}
	}
	_, section, _ := strings.Cut(page, "## Why a partition stops")
	compareRows(t, reasons, regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1))
}

var (
	errorVar  = regexp.MustCompile(`(?m)^(?:var |\t)(Err[A-Z]\w*) +(?:error )?= `)
	errorType = regexp.MustCompile(`(?m)^type ([A-Z]\w*Error) struct`)
)

// Each exported error has a row in docs/troubleshooting.md, and each row names an existing error.
func TestTroubleshootingHasEachExportedError(t *testing.T) {
	var exported []string
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch dir := filepath.ToSlash(path); {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "internal" || slices.Contains([]string{"bench", "engine/storetest", "engine/enginetest", "integrations"}, dir)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text := source(t, path)
		for _, m := range append(errorVar.FindAllStringSubmatch(text, -1), errorType.FindAllStringSubmatch(text, -1)...) {
			exported = append(exported, filepath.Base(filepath.Dir(path))+"."+m[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(exported) < 60 {
		t.Errorf("%d errors are found", len(exported))
	}
	compareRows(t, exported, regexp.MustCompile("(?m)^\\| `(\\w+\\.\\w+)` \\|").FindAllStringSubmatch(source(t, "docs/troubleshooting.md"), -1))
}

// compareRows reports names without a row, and rows without a name in the code.
func compareRows(t *testing.T, want []string, rows [][]string) {
	t.Helper()
	there := map[string]bool{}
	for _, row := range rows {
		there[row[1]] = true
		if !slices.Contains(want, row[1]) {
			t.Errorf("a row is about %s, which is not in the code", row[1])
		}
	}
	for _, w := range want {
		if !there[w] {
			t.Errorf("%s has no row", w)
		}
	}
	if len(want) < 5 {
		t.Errorf("only %q are found", want)
	}
}
