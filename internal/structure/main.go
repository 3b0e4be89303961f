// Command structure prints figures about the structure of the packages of this module: which of
// their files depend on each other in a circle, how many methods their largest types have,
// including those of embedded structs, and which structs embed others.
//
//	go run ./internal/structure              # every package of the module
//	go run ./internal/structure ./engine/... # some of them
//	go run ./internal/structure -files ./kafkaadapter
//
// File A depends on file B if A uses a package-level name or a method that B declares. Files that
// depend on each other directly or indirectly form a circle: none of them can be understood alone.
// Test files are omitted. The test of this package compares the figures with limits.go.
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"strings"
	"text/tabwriter"
)

func main() {
	files := flag.Bool("files", false, "list the files of each circle, too")
	flag.Parse()
	packages, err := measure(flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "package\tfiles\tfiles in circles\tlargest types (methods)")
	for _, p := range packages {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", p.name, p.files, p.circleSizes(), p.largestTypes())
	}
	_ = w.Flush() // standard output may be closed
	if !*files {
		return
	}
	for _, p := range packages {
		for _, circle := range p.circles {
			fmt.Printf("\n%s, a circle of %d files:\n", p.name, len(circle))
			for _, file := range circle {
				fmt.Printf("\t%s uses %s\n", file, strings.Join(p.usesInside(file, circle), " "))
			}
		}
	}
}

// largestTypes names up to three types with more than half of the permitted number of methods.
func (p *figures) largestTypes() string {
	var all []string
	for _, t := range p.types[:min(len(p.types), 3)] {
		if 2*t.methods > mostMethods || len(all) == 0 {
			all = append(all, fmt.Sprintf("%s %d", t.name, t.methods))
		}
	}
	return strings.Join(all, ", ")
}

// usesInside returns the names of other files of its circle that the file uses.
func (p *figures) usesInside(file string, circle []string) (uses []string) {
	for _, other := range circle {
		if names := p.uses[file][other]; other != file && len(names) > 0 {
			uses = append(uses, path.Base(other)+"("+strings.Join(names, " ")+")")
		}
	}
	return uses
}
