package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hapax-dev/hapax/bench/report"
)

// An outcome is the outcome of one run.
type outcome struct {
	perS    float64
	asked   int     // ids, 0 for a consumer
	cpu     float64 // seconds of the consumer and its server
	wrong   string  // "" if nothing was wrong
	samples []report.Sample
}

const right = "right"

func (o *outcome) wrongOrRight() string {
	if o.wrong == "" {
		return right
	}
	return "WRONG: " + o.wrong
}

// A table collects the outcomes of all contenders.
type table struct {
	kept *report.Comparison
	rows []*measured
}

// measured is a contender with its outcomes, by round.
type measured struct {
	report.Row
	outcomes []outcome
}

func (t *table) add(row report.Row) *measured {
	m := &measured{Row: row}
	t.rows = append(t.rows, m)
	return m
}

func (m *measured) take(o outcome) {
	m.outcomes = append(m.outcomes, o)
	if m.Wrong == "" {
		m.Wrong = o.wrong
	}
}

func (m *measured) killed(k kill, how string) {
	if k == killProcess {
		m.Killed = how
	} else {
		m.KilledServer = how
	}
}

// finish takes medians and ratios.
func (t *table) finish() {
	for _, m := range t.rows {
		if len(m.outcomes) == 0 {
			continue
		}
		sorted := slices.Clone(m.outcomes)
		slices.SortFunc(sorted, func(a, b outcome) int {
			if a.perS < b.perS {
				return -1
			}
			return 1
		})
		mid := sorted[len(sorted)/2]
		m.PerS = report.Spread{Median: mid.perS, Min: sorted[0].perS, Max: sorted[len(sorted)-1].perS}
		m.Records = mid.asked
		m.CPUSeconds, m.Samples = mid.cpu, mid.samples
		t.kept.Rows = append(t.kept.Rows, m.Row)
	}
	for _, ours := range t.rows {
		for _, theirs := range t.rows {
			if isOurs(ours.Name) && !isOurs(theirs.Name) && ours.Work == theirs.Work {
				if r := ratio(ours, theirs); r > 0 {
					t.kept.Ratios = append(t.kept.Ratios, report.Ratio{Of: ours.Name, Over: theirs.Name, Work: ours.Work, Ratio: r})
				}
			}
		}
	}
}

func isOurs(name string) bool { return strings.HasPrefix(name, "hapax") }

// ratio returns the median of the ratios of the rounds that both have completed, 0 if there is
// none.
func ratio(of, over *measured) float64 {
	var all []float64
	for i := range min(len(of.outcomes), len(over.outcomes)) {
		all = append(all, of.outcomes[i].perS/over.outcomes[i].perS)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// print prints the tables.
func (t *table) print(unit string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	line("contender", "work", unit, "least..most", "cpu s", "in the end", "process killed", "server killed, too", "setting")
	for _, r := range t.kept.Rows {
		wrong := right
		if r.Wrong != "" {
			wrong = "WRONG: " + r.Wrong
		}
		line(r.Name, r.Work, fmt.Sprintf("%.1f", r.PerS.Median/1e3), fmt.Sprintf("%.1f..%.1f", r.PerS.Min/1e3, r.PerS.Max/1e3),
			fmt.Sprintf("%.1f", r.CPUSeconds), wrong, dash(r.Killed), dash(r.KilledServer), dash(r.Setting))
	}
	_ = w.Flush() // there is nobody to tell
	line()
	line("ratio of", "over", "work", "")
	for _, r := range t.kept.Ratios {
		line(r.Of, r.Over, r.Work, fmt.Sprintf("%.2f", r.Ratio))
	}
	_ = w.Flush()
	fmt.Println("\nwhat is durable when a batch is done:")
	told := map[string]bool{}
	for _, r := range t.kept.Rows {
		if !told[r.Name] {
			line("  "+r.Name, r.Durability)
			told[r.Name] = true
		}
	}
	_ = w.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
