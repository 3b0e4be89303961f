// Package alerts evaluates docs/monitoring/alerts.yaml with Prometheus's own evaluator. It is a module of its own, so that
// Hapax does not depend on the server of Prometheus.
package alerts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v3"
)

const (
	alertsFile = "../../docs/monitoring/alerts.yaml"
	testsFile  = "../../docs/monitoring/alerts_test.yaml"
)

// A suite has the part of promtool's format for tests of rules that is used here.
type suite struct {
	RuleFiles []string       `yaml:"rule_files"`
	Interval  model.Duration `yaml:"evaluation_interval"`
	Tests     []ruleTest     `yaml:"tests"`
}

type ruleTest struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"`
	Series   []series       `yaml:"input_series"`
	Alerts   []alertTest    `yaml:"alert_rule_test"`
}

type series struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

type alertTest struct {
	At    model.Duration `yaml:"eval_time"`
	Name  string         `yaml:"alertname"`
	Fires []struct {
		Labels map[string]string `yaml:"exp_labels"`
	} `yaml:"exp_alerts"`
}

func readSuite(t *testing.T) suite {
	t.Helper()
	f, err := os.Open(testsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var s suite
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// evaluate evaluates the rules up to the end of the test, and returns for each alert test the labels
// of the alerts that fire then.
func evaluate(t *testing.T, file string, every time.Duration, test *ruleTest) [][]string {
	t.Helper()
	var load strings.Builder
	fmt.Fprintf(&load, "load %v\n", test.Interval)
	for _, s := range test.Series {
		fmt.Fprintf(&load, "  %s %s\n", s.Series, s.Values)
	}
	p := parser.NewParser(parser.Options{})
	loader, err := promqltest.NewLazyLoader(load.String(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: p})
	if err != nil {
		t.Fatal(err)
	}
	defer loader.Close()
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(loader.QueryEngine(), loader.Storage()), AppendableV2: loader.Storage(), Context: context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: promslog.NewNopLogger(), Parser: p,
	})
	groups, errs := m.LoadGroups(every, labels.EmptyLabels(), "", nil, false, file)
	if errs != nil {
		t.Fatal(errs)
	}
	var all []*rules.AlertingRule
	for _, g := range groups {
		for _, r := range g.Rules() {
			a := r.(*rules.AlertingRule)
			a.SetRestored(true)
			all = append(all, a)
		}
	}
	fires := make([][]string, len(test.Alerts))
	last := slices.MaxFunc(test.Alerts, func(a, b alertTest) int { return int(a.At - b.At) }).At
	for at := time.Duration(0); at <= time.Duration(last); at += every {
		loader.WithSamplesTill(time.Unix(0, 0).Add(at), func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range groups {
				g.Eval(loader.Context(), time.Unix(0, 0).Add(at))
			}
		})
		for _, r := range all {
			if r.LastError() != nil {
				t.Fatalf("%s: %v", r.Name(), r.LastError())
			}
			for i := range test.Alerts {
				if test.Alerts[i].Name != r.Name() || at != time.Duration(test.Alerts[i].At).Truncate(every) {
					continue
				}
				for _, a := range r.ActiveAlerts() {
					if a.State == rules.StateFiring {
						fires[i] = append(fires[i], labels.NewBuilder(a.Labels).Del(labels.AlertName).Labels().String())
					}
				}
				slices.Sort(fires[i])
			}
		}
	}
	return fires
}

// failures returns what does not fit the tests, and for each alert whether a test saw it fire and
// one saw it not fire.
func failures(t *testing.T, file string, s suite) (wrong []string, seen map[string][2]bool) {
	t.Helper()
	seen = map[string][2]bool{}
	for i := range s.Tests {
		test := &s.Tests[i]
		got := evaluate(t, file, time.Duration(s.Interval), test)
		for j, a := range test.Alerts {
			var want []string
			for _, f := range a.Fires {
				want = append(want, labels.FromMap(f.Labels).String())
			}
			slices.Sort(want)
			if !slices.Equal(got[j], want) {
				wrong = append(wrong, fmt.Sprintf("%s: %s at %v: %q fire, want %q", test.Name, a.Name, a.At, got[j], want))
				continue
			}
			both := seen[a.Name]
			both[min(len(want), 1)] = true
			seen[a.Name] = both
		}
	}
	return wrong, seen
}

func TestEachAlertFiresAndEnds(t *testing.T) {
	s := readSuite(t)
	if !slices.Equal(s.RuleFiles, []string{filepath.Base(alertsFile)}) {
		t.Errorf("rule files: %q", s.RuleFiles)
	}
	wrong, seen := failures(t, alertsFile, s)
	for _, w := range wrong {
		t.Error(w)
	}
	for _, name := range names(t) {
		if both := seen[name]; !both[0] || !both[1] {
			t.Errorf("%s: seen not to fire: %v, seen to fire: %v", name, both[0], both[1])
		}
	}
}

// names are those of all alerts.
func names(t *testing.T) (all []string) {
	t.Helper()
	for line := range strings.Lines(text(t)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); ok {
			all = append(all, name)
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %q are found", all)
	}
	return all
}

func text(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The negative control: rules whose alerts cannot fire, that fire always, or that see only the increase
// of a counter, do not pass.
func TestWrongRulesAreFound(t *testing.T) {
	s := readSuite(t)
	for name, change := range map[string]func(line string) string{
		"never": func(line string) string {
			return strings.TrimRight(strings.Replace(line, "expr: ", "expr: vector(1) == 2 and (", 1), "\n") + ")\n"
		},
		"increase": func(line string) string {
			before, _, _ := strings.Cut(strings.TrimRight(line, "\n"), " or ")
			return before + "\n"
		},
		"always": func(line string) string {
			if strings.Contains(line, "expr: ") {
				return line[:strings.Index(line, "expr: ")] + "expr: vector(1)\n"
			}
			return line
		},
	} {
		t.Run(name, func(t *testing.T) {
			var wrongRules strings.Builder
			for line := range strings.Lines(text(t)) {
				if strings.Contains(line, "expr: ") {
					line, _, _ = strings.Cut(line, " #") // comments
					line = change(line)
				}
				wrongRules.WriteString(line)
			}
			file := filepath.Join(t.TempDir(), "alerts.yaml")
			if err := os.WriteFile(file, []byte(wrongRules.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			wrong, _ := failures(t, file, s)
			least := len(names(t))
			if name == "increase" {
				least = strings.Count(text(t), " or ")
			}
			if len(wrong) < least {
				t.Errorf("only %d failures: %q", len(wrong), wrong)
			}
		})
	}
}
