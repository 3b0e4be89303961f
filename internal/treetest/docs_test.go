package treetest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile("`(Test\\w+)`")

const failureTests = "docs/contributing/failure-tests.md"

// TestFailuresNameTheirTests compares docs/failures.md with the page for contributors that names
// the tests of each row: both have the same failures in the same order, and the tests exist.
func TestFailuresNameTheirTests(t *testing.T) {
	rows, problems := failures(source(t, "docs/failures.md"), source(t, failureTests), tests(t))
	if rows < 40 {
		t.Errorf("%d rows are found", rows)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestFailureWithoutATestIsDetected(t *testing.T) {
	const (
		page = "| failure | what happens | what the application sees | what to do |\n|---|---|---|---|\n"
		list = "| failure | tests |\n|---|---|\n"
	)
	defined := map[string]bool{"TestThatExists": true}
	for _, c := range []struct {
		row, test string
		want      int
	}{
		{"| a | b | c | d |\n", "| a | `TestThatExists` |\n", 0},
		{"| a | b | c | d |\n", "| a | no test yet |\n", 0},
		{"| a | b | c | d |\n", "| a | `TestThatIsNotThere` |\n", 1},
		{"| a | b | c | d |\n", "| a | soon |\n", 1},
		{"| a | b | c | d |\n", "", 1},
		{"", "| a | `TestThatExists` |\n", 1},
		{"| a | b | c | d |\n", "| e | `TestThatExists` |\n", 1},
		{"| a | b | c |\n", "| a | `TestThatExists` |\n", 1},
	} {
		if _, problems := failures(page+c.row, list+c.test, defined); len(problems) != c.want {
			t.Errorf("%q and %q: %q, want %d", c.row, c.test, problems, c.want)
		}
	}
}

// failures returns the number of failures on the page for operators, and what is wrong with it or
// with the list of their tests.
func failures(page, list string, defined map[string]bool) (rows int, problems []string) {
	described, wrong := table(page, 4)
	tested, wrongTests := table(list, 2)
	problems = append(wrong, wrongTests...)
	for i := range max(len(described), len(tested)) {
		switch {
		case i >= len(tested):
			return len(described), append(problems, failureTests+" has no row for: "+described[i][0])
		case i >= len(described):
			return len(described), append(problems, failureTests+" has a row too many: "+tested[i][0])
		case described[i][0] != tested[i][0]:
			return len(described), append(problems, failureTests+" has another row in place of: "+described[i][0])
		}
		names := testName.FindAllStringSubmatch(tested[i][1], -1)
		if len(names) == 0 && !strings.Contains(tested[i][1], "no test yet") {
			problems = append(problems, "neither a test nor that there is none: "+tested[i][0])
		}
		for _, name := range names {
			if !defined[name[1]] {
				problems = append(problems, "there is no "+name[1]+": "+tested[i][0])
			}
		}
	}
	return len(described), problems
}

// table returns the cells of the rows of all tables of a page, without headings; a row with another
// number of cells is also returned as wrong.
func table(page string, cells int) (rows [][]string, wrong []string) {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| failure |") {
			continue
		}
		row := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if len(row) != cells {
			wrong = append(wrong, fmt.Sprintf("not %d cells: %s", cells, line))
			row = append(row, make([]string, cells)...)
		}
		rows = append(rows, row)
	}
	return rows, wrong
}

// tests returns the names of all tests of the module.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(b, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
