package main

import "fmt"

// What every package may have.
const (
	mostFiles   = 5  // in one circle
	mostMethods = 30 // of one type
)

// check returns what the packages have beyond the limits.
func check(packages []figures) (problems []string) {
	for _, p := range packages {
		if len(p.circles) > 0 && len(p.circles[0]) > mostFiles {
			problems = append(problems, fmt.Sprintf("package %s: %s files depend on each other in circles; at most %d in one are allowed: "+
				"see go run ./internal/structure -files ./%[1]s", p.name, p.circleSizes(), mostFiles))
		}
		for _, t := range p.types {
			if t.methods > mostMethods {
				problems = append(problems, fmt.Sprintf("package %s: type %s has %d methods; at most %d are allowed", p.name, t.name, t.methods, mostMethods))
			}
		}
	}
	return problems
}
