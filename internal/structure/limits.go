package main

import (
	"fmt"
	"strings"
)

// The limits for every package.
const (
	mostFiles   = 5  // in one circle
	mostMethods = 30 // of one type
)

// mayEmbed has the structs that may be embedded, with the reason.
var mayEmbed = map[string]string{
	"kafkaadapter.Record.Record": "handlers use it as the kgo.Record that it is",
}

// helpers are the packages whose structs may embed others: tests, measurements and examples.
var helpers = []string{"bench", "cmd/", "examples", "internal/", "engine/storetest", "engine/enginetest"}

func isHelper(pkg string) bool {
	for _, prefix := range helpers {
		if strings.HasPrefix(pkg, prefix) {
			return true
		}
	}
	return false
}

// check returns where the packages exceed the limits.
func check(packages []figures) (problems []string) {
	for _, p := range packages {
		if len(p.circles) > 0 && len(p.circles[0]) > mostFiles {
			problems = append(problems, fmt.Sprintf("package %s: %s files depend on each other in circles; at most %d in one are allowed: "+
				"see go run ./internal/structure -files ./%[1]s", p.name, p.circleSizes(), mostFiles))
		}
		for _, e := range p.embeds {
			if name := p.name + "." + e; mayEmbed[name] == "" && !isHelper(p.name) {
				problems = append(problems, fmt.Sprintf("package %s: %s is an embedded struct: name the field", p.name, e))
			}
		}
		for _, t := range p.types {
			if t.methods > mostMethods {
				problems = append(problems, fmt.Sprintf("package %s: type %s has %d methods; at most %d are allowed", p.name, t.name, t.methods, mostMethods))
			}
		}
	}
	return problems
}
