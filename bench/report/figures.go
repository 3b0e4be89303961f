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
	// Sources are the commands whose reports it draws.
	Sources []About

	picture *picture
}

// SVG returns the picture as a file of its own, with its sources below.
func (f *Figure) SVG() string {
	p := *f.picture
	p.body = slices.Clip(p.body)
	for i, s := range f.Sources {
		p.note(s.Command)
		if i+1 == len(f.Sources) || f.Sources[i+1].Where() != s.Where() {
			p.note(s.Where())
		}
	}
	return p.svg(true)
}

// Figures draws the reports. There is a figure only for available data.
func Figures(runs []Run) (all []Figure) {
	for _, draw := range []func([]Run) []Figure{peers, overClaims, overWeeks, percentiles, recovery, perClaim} {
		all = append(all, draw(runs)...)
	}
	return all
}

func ours(name string) bool { return strings.HasPrefix(name, "hapax") }

var workNames = map[string]string{
	"shared":    "accounts that all partitions share",
	"partition": "accounts for each partition alone",
	"claims":    "no accounts, claims only",
}

// peers draws the rates of comparisons as bars with their spread.
func peers(runs []Run) (all []Figure) {
	for i := range runs {
		c := runs[i].Comparison
		if c == nil || len(c.Rows) < 2 {
			continue
		}
		works := []string{}
		for _, r := range c.Rows {
			if !slices.Contains(works, r.Work) {
				works = append(works, r.Work)
			}
		}
		for _, w := range works {
			var rows []bar
			for _, r := range c.Rows {
				if r.Work != w {
					continue
				}
				b := bar{Label: r.Name, Value: r.PerS.Median, Min: r.PerS.Min, Max: r.PerS.Max, Ours: ours(r.Name), Note: fate(&r)}
				rows = append(rows, b)
			}
			slices.SortStableFunc(rows, func(a, b bar) int { return cmp.Compare(b.Value, a.Value) })
			name, title, unit := "peers-claims", "Claims compared with other systems", "ids a second"
			text := fmt.Sprintf("Medians (rounds: %d); the thin line goes from the least to the most. A cross marks what was wrong after a SIGKILL half-way: "+
				"✗ of the process, ✗✗ of the process and its server.", c.Rounds)
			switch {
			case runs[i].About.Kind == "peers scale":
				name, title = "scale-"+word(w), title+": "+w
				text = "A run that reaches its time limit has the rate until then."
			case w != "":
				name, unit = "peers-consumer-"+word(w), "records a second"
				title = "Consumers of one topic: " + cmp.Or(workNames[w], w)
			}
			all = append(all, Figure{
				Name: name, Title: title, Sources: []About{runs[i].About},
				Text: text, picture: bars(title, unit, rows),
			})
		}
	}
	return all
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

// overClaims draws the rate against the claims that are stored.
func overClaims(runs []Run) (all []Figure) {
	for _, kind := range []struct{ of, name, title string }{
		{"peers claims", "rate-over-claims", "Rate against stored claims"},
		{"peers scale", "rate-at-scale", "Rate against stored claims, up to a large store"},
	} {
		for _, r := range comparisons(runs, kind.of) {
			all = appendLines(all, r, kind.name, kind.title, "stored claims", "claims a second", ratesOf(r.Comparison),
				"The rate of each portion of 262,144 ids, of contenders that write to disk, in the round with the median rate.")
		}
	}
	return all
}

// ratesOf returns a curve for each name: of its row with the most samples.
func ratesOf(c *Comparison) (rates []curve) {
	for _, row := range c.Rows {
		// Those in memory alone are far above.
		r := sampled(&row, row.Name, stored, perS)
		if len(r.Points) < 2 || !r.Ours && row.Durability == "nothing" {
			continue
		}
		if last := len(rates) - 1; last < 0 || rates[last].Label != r.Label {
			rates = append(rates, r)
		} else if len(r.Points) > len(rates[last].Points) {
			rates[last] = r
		}
	}
	return rates
}

// overWeeks draws the rate, and the size on disk, while weeks come and are dropped.
func overWeeks(runs []Run) (all []Figure) {
	for _, r := range comparisons(runs, "peers weeks") {
		row := r.Comparison.Rows[0]
		rate := sampled(&row, row.Name, claimed, perS)
		rate.Points = slices.DeleteFunc(rate.Points, func(p point) bool { return p.Y == 0 })
		all = appendLines(all, r, "rate-over-weeks", "Rate while weeks come and go", "claims so far", "claims a second", []curve{rate},
			"Each week is new ids only; the oldest week is dropped when the next one begins.")
		disk := sampled(&row, "on disk", claimed, func(s *Sample) float64 { return float64(s.Disk) })
		resident := sampled(&row, "resident memory", claimed, func(s *Sample) float64 { return float64(s.Resident) })
		resident.Ours = false
		all = appendLines(all, r, "disk-by-week", "Disk and memory by week", "claims so far", "bytes", []curve{disk, resident},
			"A fall of the disk's line is a dropped week. The run: "+row.Settings+".")
	}
	return all
}

// comparisons are those of one command that have rows.
func comparisons(runs []Run, kind string) (some []*Run) {
	for i := range runs {
		if c := runs[i].Comparison; c != nil && runs[i].About.Kind == kind && len(c.Rows) > 0 {
			some = append(some, &runs[i])
		}
	}
	return some
}

func claimed(s *Sample) float64 { return float64(s.Claimed) }
func stored(s *Sample) float64  { return float64(s.Stored) }
func perS(s *Sample) float64    { return s.PerS }

func sampled(r *Row, label string, x, y func(*Sample) float64) curve {
	c := curve{Label: label, Ours: ours(r.Name)}
	for i := range r.Samples {
		c.Points = append(c.Points, point{x(&r.Samples[i]), y(&r.Samples[i])})
	}
	return c
}

func appendLines(all []Figure, run *Run, name, title, x, y string, curves []curve, text string) []Figure {
	curves = slices.DeleteFunc(curves, func(c curve) bool { return len(c.Points) == 0 })
	if len(curves) == 0 {
		return all
	}
	return append(all, Figure{Name: name, Title: title, Text: text, Sources: []About{run.About}, picture: lines(title, x, y, curves)})
}

// percentiles draws the latencies of dedupbench claims.
func percentiles(runs []Run) []Figure {
	var rows []bar
	var sources []About
	for i := range runs {
		r := &runs[i]
		if r.About.Kind != "claims" {
			continue
		}
		what := r.flag("store", "pebble") + ", " + r.flag("goroutines", "1") + " × " + r.flag("in-flight", "1") + " batches of " + r.flag("batch", "1000")
		before := len(rows)
		for _, p := range []struct{ name, label string }{
			{"p50_us", "median"}, {"p99_us", "99 %"}, {"p999_us", "99.9 %"},
		} {
			if v, ok := r.number(p.name); ok && v > 0 {
				rows = append(rows, bar{Label: what + ": " + p.label, Value: v, Ours: true})
			}
		}
		if len(rows) > before {
			sources = append(sources, r.About)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	const title = "How long a batch takes"
	return []Figure{{Name: "latency", Title: title, Sources: sources, picture: bars(title, "microseconds", rows),
		Text: "From the start of a batch until its caller has the results, which are durable then. 4 × 8: four callers with eight batches in flight each."}}
}

// recovery draws dedupbench reopen: the time until the first verdict, by size.
func recovery(runs []Run) []Figure {
	byStore := map[string][]point{}
	var sources []About
	for i := range runs {
		r := &runs[i]
		acked, ok := r.number("acked")
		ms, found := r.number("first_verdict_ms")
		if r.About.Kind == "reopen" && ok && found {
			store := r.flag("store", "pebble")
			byStore[store] = append(byStore[store], point{acked, ms})
			sources = append(sources, r.About)
		}
	}
	if len(byStore) == 0 {
		return nil
	}
	var curves []curve
	for _, store := range []string{"pebble", "bolt"} {
		if pts := byStore[store]; len(pts) > 0 {
			slices.SortFunc(pts, func(a, b point) int { return cmp.Compare(a.X, b.X) })
			curves = append(curves, curve{Label: store, Points: pts, Ours: true, Dots: true})
		}
	}
	const title = "Back at work after SIGKILL"
	return []Figure{{Name: "recovery", Title: title, Sources: sources, picture: lines(title, "claims in the store", "ms to the first verdict", curves),
		Text: "From before the store is opened until the first claim is answered. Files are in the memory of the operating system as far as it goes."}}
}

// perClaim draws the size of a claim on disk and in memory, and the processor time of an event.
func perClaim(runs []Run) (all []Figure) {
	var disk, memory, cpu []bar
	var sources []About
	for i := range runs {
		r := &runs[i]
		claimed, ok := r.number("claimed")
		each, found := r.number("bytes_per_claim")
		if r.About.Kind != "claims" || !ok || !found || claimed == 0 {
			continue
		}
		sources = append(sources, r.About)
		if rounds, _ := r.number("rounds"); rounds > 1 {
			claimed /= rounds // a store has those of one
		}
		label := "hapax, " + r.flag("store", "pebble") + ", " + short3(claimed)
		disk = append(disk, bar{Label: label + ": all files", Value: each, Ours: true})
		if v, ok := r.number("claim_bytes_per_claim"); ok {
			disk = append(disk, bar{Label: label + ": claims alone", Value: v, Ours: true})
		}
		if v, ok := r.number("heap_bytes"); ok {
			memory = append(memory, bar{Label: label + ": heap", Value: v / claimed, Ours: true})
		}
		if v, ok := r.number("rss_bytes"); ok {
			memory = append(memory, bar{Label: label + ": resident", Value: v / claimed, Ours: true})
		}
		if v, ok := r.number("cpu_us_per_claim"); ok {
			cpu = append(cpu, bar{Label: label, Value: v, Ours: true})
		}
	}
	add := func(name, title, unit, text string, rows []bar) {
		if len(rows) > 0 {
			all = append(all, Figure{Name: name, Title: title, Text: text, Sources: sources, picture: bars(title, unit, rows)})
		}
	}
	add("cpu-per-claim", "Processor time an event", "microseconds", "All goroutines of the process, compactions until the store is idle included, repeats counted as events.", cpu)
	for _, run := range slices.Concat(comparisons(runs, "peers claims"), comparisons(runs, "peers scale")) {
		sources = append(sources, run.About)
		for _, r := range run.Comparison.Rows {
			n := len(r.Samples)
			if n == 0 || r.Samples[n-1].Stored == 0 {
				continue
			}
			last := r.Samples[n-1]
			b := bar{Label: r.Name + ", " + short3(float64(last.Stored)), Ours: ours(r.Name)}
			if b.Value = float64(last.Disk) / float64(last.Stored); last.Disk > 0 {
				disk = append(disk, b)
			}
			if b.Value = float64(last.Resident) / float64(last.Stored); last.Resident > 0 {
				memory = append(memory, b)
			}
		}
	}
	add("disk-per-claim", "Disk a claim", "bytes a claim", "Peers: all files at the end of a run, with logs that are not trimmed yet.", disk)
	add("memory-per-claim", "Memory a claim", "bytes a claim", "Peers: resident memory of the process that keeps the claims, with what it takes when it is empty. Postgres has many processes and is left out.", memory)
	return all
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
