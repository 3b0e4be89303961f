package treetest

import (
	"strings"
	"testing"
)

// TestTestingPageShowsTheExamples: the code of docs/testing.md that calls or is called by the
// examples of hapaxtest is the same as there.
func TestTestingPageShowsTheExamples(t *testing.T) {
	page, examples := source(t, "docs/testing.md"), source(t, "hapaxtest/example_test.go")
	n, problems := strayBlocks(page, examples)
	if n != 5 {
		t.Errorf("%d blocks are found, want the handler and four tests", n)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestDifferenceFromAnExampleOfATestIsDetected(t *testing.T) {
	page, examples := source(t, "docs/testing.md"), source(t, "hapaxtest/example_test.go")
	changed := strings.Replace(page, `c.WantCalls("p1", 1)`, `c.WantCalls("p1", 2)`, 1)
	if _, problems := strayBlocks(changed, examples); changed == page || len(problems) != 1 {
		t.Errorf("%q", problems)
	}
}

// strayBlocks returns the number of Go blocks of a page about the examples' bank, and those that
// are not in the examples.
func strayBlocks(page, examples string) (n int, stray []string) {
	examples = strings.ReplaceAll(examples, "\n\t", "\n") // the body of a function
	for _, block := range strings.Split(page, "```go\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(block, "bank") {
			continue
		}
		n++
		if !strings.Contains(examples, strings.ReplaceAll(block, "\n\t", "\n")) {
			stray = append(stray, "docs/testing.md has code that is not in hapaxtest/example_test.go:\n"+block)
		}
	}
	return n, stray
}
