package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// The limits of a package without a line in limits.txt.
const (
	mostFiles   = 5  // in one circle
	mostMethods = 30 // of one type
)

//go:embed limits.txt
var exceptions string

// limits are what one package may have.
type limits struct {
	largest int // files in one circle
	total   int // files in all circles, 0 for any number
	methods int // of one type
}

// readLimits reads the table of the packages with higher limits.
func readLimits(table string) (map[string]limits, error) {
	all := make(map[string]limits)
	for line := range strings.Lines(table) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var name string
		var l limits
		if _, err := fmt.Sscan(line, &name, &l.largest, &l.total, &l.methods); err != nil {
			return nil, fmt.Errorf("limits.txt: %q: %w", line, err)
		}
		all[name] = l
	}
	return all, nil
}

func (p *figures) measured() (l limits) {
	for _, circle := range p.circles {
		l.total += len(circle)
		l.largest = max(l.largest, len(circle))
	}
	if len(p.types) > 0 {
		l.methods = p.types[0].methods
	}
	return l
}

// check returns how the packages exceed the limits, and the lines of limits.txt that can be
// lowered.
func check(packages []figures, allowed map[string]limits) (problems, lower []string) {
	for _, p := range packages {
		most, listed := allowed[p.name]
		if !listed {
			most = limits{largest: mostFiles, methods: mostMethods}
		}
		got := p.measured()
		if got.largest > most.largest || most.total > 0 && got.total > most.total {
			problems = append(problems, fmt.Sprintf("package %s: %s files depend on each other in circles; at most %d in one and %d in all are allowed: "+
				"see go run ./internal/structure -files ./%[1]s", p.name, p.circleSizes(), most.largest, max(most.total, most.largest)))
		}
		for _, t := range p.types {
			if t.methods > most.methods {
				problems = append(problems, fmt.Sprintf("package %s: type %s has %d methods; at most %d are allowed", p.name, t.name, t.methods, most.methods))
			}
		}
		if listed && (got.largest < most.largest || got.total < most.total || got.methods < most.methods) {
			lower = append(lower, fmt.Sprintf("%s %d %d %d", p.name, got.largest, got.total, got.methods))
		}
	}
	for name := range allowed {
		if !slices.ContainsFunc(packages, func(p figures) bool { return p.name == name }) {
			problems = append(problems, "limits.txt: there is no package "+name)
		}
	}
	return problems, lower
}
