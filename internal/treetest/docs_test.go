package treetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile("`(Test\\w+)`")

// TestFailuresNameTheirTests compares docs/failures.md with the source: each row names existing
// tests, or says that there is none.
func TestFailuresNameTheirTests(t *testing.T) {
	rows, problems := failures(t, source(t, "docs/failures.md"))
	if rows < 40 {
		t.Errorf("%d rows are found", rows)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestFailureWithoutATestIsDetected(t *testing.T) {
	const header = "| failure | what happens | what the application sees | what it can do | test |\n|---|---|---|---|---|\n"
	for row, want := range map[string]int{
		"| a | b | c | d | `TestFailureWithoutATestIsDetected` |\n": 0,
		"| a | b | c | d | no test yet |\n":                         0,
		"| a | b | c | d | `TestThatIsNotThere` |\n":                1,
		"| a | b | c | d | soon |\n":                                1,
		"| a | b | c | `TestFailureWithoutATestIsDetected` |\n":     1,
	} {
		if _, problems := failures(t, header+row); len(problems) != want {
			t.Errorf("%s%q, want %d", row, problems, want)
		}
	}
}

func failures(t *testing.T, page string) (rows int, problems []string) {
	t.Helper()
	defined := tests(t)
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		switch {
		case !strings.HasPrefix(line, "| "), strings.HasPrefix(line, "| failure |"):
			continue
		case len(cells) != 5:
			problems = append(problems, "not five cells: "+line)
			continue
		}
		rows++
		names := testName.FindAllStringSubmatch(cells[4], -1)
		if len(names) == 0 && !strings.Contains(cells[4], "no test yet") {
			problems = append(problems, "neither a test nor that there is none: "+line)
		}
		for _, name := range names {
			if !defined[name[1]] {
				problems = append(problems, "there is no "+name[1]+": "+line)
			}
		}
	}
	return rows, problems
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
