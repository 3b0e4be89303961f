package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Figure is a picture with its texts.
type Figure struct {
	// Name is a word for a file name or an anchor.
	Name string
	// Title says what is drawn, Text explains it.
	Title, Text string
	// Sources are the commands whose reports the figure draws.
	Sources []About

	unit string
	bars []bar
}

// SVG returns the picture as a stand-alone file, with its sources below.
func (f *Figure) SVG() string {
	p := f.picture()
	for i, s := range f.Sources {
		p.note(s.Command)
		if i+1 == len(f.Sources) || f.Sources[i+1].Where() != s.Where() {
			p.note(s.Where())
		}
	}
	return p.svg(true)
}

// Figures draws the reports, with a figure for each kind of data that they contain.
func Figures(runs []Run) (all []Figure) {
	for _, draw := range []func([]Run) []Figure{peers, overClaims, percentiles, recovery, perClaim} {
		all = append(all, draw(runs)...)
	}
	return slices.DeleteFunc(all, func(f Figure) bool { return len(f.bars) == 0 })
}

func ours(name string) bool { return strings.HasPrefix(name, "hapax") }

var workNames = map[string]string{
	"shared":    "accounts that all partitions share",
	"partition": "accounts for each partition alone",
	"claims":    "no accounts, claims only",
}

// peers draws the rates of comparisons with their spread, a figure for each work.
func peers(runs []Run) (all []Figure) {
	for i := range runs {
		c := runs[i].Comparison
		if c == nil || len(c.Rows) < 2 {
			continue
		}
		first := len(all)
		for _, r := range c.Rows {
			figure := comparison(&runs[i], r.Work)
			at := slices.IndexFunc(all[first:], func(f Figure) bool { return f.Name == figure.Name })
			if at < 0 {
				at = len(all) - first
				all = append(all, figure)
			}
			f := &all[first+at]
			f.bars = append(f.bars, bar{Label: r.Name, Value: r.PerS.Median, Min: r.PerS.Min, Max: r.PerS.Max, Ours: ours(r.Name), Note: fate(&r)})
		}
	}
	for _, f := range all {
		slices.SortStableFunc(f.bars, func(a, b bar) int { return cmp.Compare(b.Value, a.Value) })
	}
	return all
}

// comparison returns the figure for a kind of work, without bars.
func comparison(run *Run, work string) Figure {
	f := Figure{Name: "peers-claims", Title: "Claims compared with other systems", unit: "ids a second", Sources: []About{run.About}}
	f.Text = fmt.Sprintf("Medians (rounds: %d); the thin line goes from the least to the most. A cross marks what was wrong after a SIGKILL half-way: "+
		"✗ of the process, ✗✗ of the process and its server.", run.Comparison.Rounds)
	switch {
	case run.About.Kind == "peers consumers":
		f.Name, f.Title, f.unit = "peers-consumer-"+word(work), "Consumers of one topic: "+cmp.Or(workNames[work], work), "records a second"
	case work != "":
		f.Name, f.Title = f.Name+"-"+word(work), f.Title+": "+work
	}
	return f
}

// fate describes the outcome of kills.
func fate(r *Row) string {
	wrong := func(s string) bool { return s != "" && s != "right" }
	switch {
	case r.Wrong != "":
		return "wrong"
	case wrong(r.Killed):
		return "✗"
	case wrong(r.KilledServer):
		return "✗✗"
	}
	return ""
}

// overClaims draws the rate with few and with many stored claims. It omits contenders that only use
// memory, because their rates are far higher.
func overClaims(runs []Run) (all []Figure) {
	for _, run := range runs {
		if run.Comparison == nil {
			continue
		}
		f := Figure{
			Name: "rate-over-claims", Title: "Rate with few and with many stored claims", unit: "claims a second", Sources: []About{run.About},
			Text: "The first and the last portion of 262,144 ids, in the round with the median rate.",
		}
		for _, r := range run.Comparison.Rows {
			if n := len(r.Samples); n > 1 && (ours(r.Name) || r.Durability != "nothing") {
				for _, s := range []Sample{r.Samples[0], r.Samples[n-1]} {
					f.bars = append(f.bars, bar{Label: r.Name + ", " + short3(float64(s.Stored)) + " stored", Value: s.PerS, Ours: ours(r.Name)})
				}
			}
		}
		all = append(all, f)
	}
	return all
}

// draw adds the bars of each run of a command, and the run's source if it has bars.
func (f *Figure) draw(runs []Run, kind string, of func(r *Run) []bar) {
	for i := range runs {
		if runs[i].About.Kind != kind || runs[i].Comparison == nil && strings.HasPrefix(kind, "peers") {
			continue
		}
		if more := of(&runs[i]); len(more) > 0 {
			f.bars, f.Sources = append(f.bars, more...), append(f.Sources, runs[i].About)
		}
	}
}

// percentiles draws the latencies of dedupbench claims.
func percentiles(runs []Run) []Figure {
	f := Figure{
		Name: "latency", Title: "How long a batch takes", unit: "microseconds",
		Text: "From the start of a batch until its caller has the results, which are durable then. 4 × 8: four callers with eight batches in flight each.",
	}
	f.draw(runs, "claims", func(r *Run) (rows []bar) {
		what := r.flag("store", "pebble") + ", " + r.flag("goroutines", "1") + " × " + r.flag("in-flight", "1") + " batches of " + r.flag("batch", "1000")
		for _, p := range []struct{ name, label string }{{"p50_us", "median"}, {"p99_us", "99 %"}, {"p999_us", "99.9 %"}} {
			if v, ok := r.number(p.name); ok && v > 0 {
				rows = append(rows, bar{Label: what + ": " + p.label, Value: v, Ours: true})
			}
		}
		return rows
	})
	return []Figure{f}
}

// recovery draws dedupbench reopen: the time until the first verdict, by size.
func recovery(runs []Run) []Figure {
	f := Figure{
		Name: "recovery", Title: "Back at work after SIGKILL", unit: "ms to the first verdict",
		Text: "From before the store is opened until the first claim is answered. Files are in the memory of the operating system as far as it goes.",
	}
	f.draw(runs, "reopen", func(r *Run) []bar {
		acked, ok := r.number("acked")
		ms, found := r.number("first_verdict_ms")
		if !ok || !found {
			return nil
		}
		return []bar{{Label: r.flag("store", "pebble") + ", " + short3(acked) + " claims", Value: ms, Ours: true}}
	})
	return []Figure{f}
}

// perClaim draws the size of a claim on disk and in memory.
func perClaim(runs []Run) []Figure {
	disk := Figure{
		Name: "disk-per-claim", Title: "Disk a claim", unit: "bytes a claim",
		Text: "Peers: all files at the end of a run, with logs that are not trimmed yet.",
	}
	memory := Figure{
		Name: "memory-per-claim", Title: "Memory a claim", unit: "bytes a claim",
		Text: "Peers: resident memory of the process that keeps the claims, with what it takes when it is empty. Postgres has many processes and is left out.",
	}
	disk.draw(runs, "claims", func(r *Run) []bar { return ofClaims(r, 1, "bytes_per_claim", "claim_bytes_per_claim") })
	disk.draw(runs, "peers claims", func(r *Run) []bar { return inTheEnd(r, func(s *Sample) uint64 { return s.Disk }) })
	memory.draw(runs, "claims", func(r *Run) []bar { return ofClaims(r, claimsOf(r), "heap_bytes", "rss_bytes") })
	memory.draw(runs, "peers claims", func(r *Run) []bar { return inTheEnd(r, func(s *Sample) uint64 { return s.Resident }) })
	return []Figure{disk, memory}
}

// claimsOf returns the number of claims in a store of dedupbench claims.
func claimsOf(r *Run) float64 {
	claimed, _ := r.number("claimed")
	if rounds, _ := r.number("rounds"); rounds > 1 {
		claimed /= rounds // a store has the claims of one round
	}
	return claimed
}

var fieldNames = map[string]string{"bytes_per_claim": "all files", "claim_bytes_per_claim": "claims alone", "heap_bytes": "heap", "rss_bytes": "resident"}

// ofClaims returns some fields of dedupbench claims, divided by a number.
func ofClaims(r *Run, by float64, fields ...string) (rows []bar) {
	for _, name := range fields {
		if v, ok := r.number(name); ok && claimsOf(r) > 0 {
			rows = append(rows, bar{Label: "hapax, " + r.flag("store", "pebble") + ", " + short3(claimsOf(r)) + ": " + fieldNames[name], Value: v / by, Ours: true})
		}
	}
	return rows
}

// inTheEnd returns the size of a claim in the last sample of each contender.
func inTheEnd(run *Run, size func(s *Sample) uint64) (rows []bar) {
	for _, r := range run.Comparison.Rows {
		if n := len(r.Samples); n > 0 {
			if s := &r.Samples[n-1]; size(s) > 0 && s.Stored > 0 {
				rows = append(rows, bar{Label: r.Name + ", " + short3(float64(s.Stored)), Value: float64(size(s)) / float64(s.Stored), Ours: ours(r.Name)})
			}
		}
	}
	return rows
}

// word keeps letters and digits, for file names.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(s))
}
