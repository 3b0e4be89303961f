package treetest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// leftOut begins the lines of an example that the README omits, up to an empty line.
const leftOut = "\t// Not in the README:\n"

func TestReadmeShowsTheExamples(t *testing.T) {
	for _, problem := range drift(readme(t), source(t, "example_test.go")) {
		t.Error(problem)
	}
}

func TestDifferenceFromAnExampleIsDetected(t *testing.T) {
	text, src := readme(t), source(t, "example_test.go")
	for what, changed := range map[string]string{
		"another line":    strings.Replace(src, "range 2", "range 3", 1),
		"another example": src + "\nfunc Example_new() {\n\tmust(1, nil)\n}\n",
	} {
		if changed == src {
			t.Fatal("nothing was changed:", what)
		}
		if len(drift(text, changed)) == 0 {
			t.Error("not seen:", what)
		}
	}
}

// TestCommandsOfThePagesParse runs each dedupbench command line of the pages with -help, which
// succeeds only if the other flags are valid.
func TestCommandsOfThePagesParse(t *testing.T) {
	name := filepath.Join(t.TempDir(), "dedupbench")
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", name, "./cmd/dedupbench").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	parse := func(line string) error {
		out, err := exec.Command(name, append(strings.Fields(line), "--help")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("dedupbench %s: %w: %s", line, err, out)
		}
		return nil
	}
	lines := commands(pages(t))
	if len(lines) < 2 {
		t.Fatalf("command lines found: %q", lines)
	}
	for _, line := range lines {
		if err := parse(line); err != nil {
			t.Error(err)
		}
	}
	if parse("claims --no-such-flag") == nil {
		t.Error("an unknown flag is accepted")
	}
}

// readme returns the README with the page that continues its examples.
func readme(t *testing.T) string {
	t.Helper()
	return source(t, "README.md") + source(t, "docs/getting-started.md")
}

// pages returns the README with all pages of docs and CONTRIBUTING.md.
func pages(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("docs/*.md")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	text := source(t, "README.md") + source(t, "CONTRIBUTING.md")
	for _, name := range names {
		text += source(t, name)
	}
	return text
}

func source(t *testing.T, name string) string {
	t.Helper()
	logRoot(t)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

// drift lists how the Go blocks of the README differ from the examples.
func drift(text, src string) (problems []string) {
	want, err := examples(src)
	if err != nil {
		return []string{err.Error()}
	}
	var got []string
	for _, m := range regexp.MustCompile("(?s)\n```go\n(.*?)\n```\n").FindAllStringSubmatch(text, -1) {
		got = append(got, m[1])
	}
	if len(got) != len(want) {
		return []string{fmt.Sprintf("README.md and docs/getting-started.md have %d Go blocks, example_test.go has %d examples", len(got), len(want))}
	}
	for i := range want {
		if got[i] != want[i] {
			problems = append(problems, fmt.Sprintf("the README or docs/getting-started.md shows\n%s\n\nand the example is\n%s", got[i], want[i]))
		}
	}
	return problems
}

// examples returns the bodies of the Example functions in their order, as the README shows them.
func examples(src string) (bodies []string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "example_test.go", src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(fn.Name.Name, "Example") {
			continue
		}
		body := src[fset.Position(fn.Body.Lbrace).Offset+1 : fset.Position(fn.Body.Rbrace).Offset]
		if before, rest, ok := strings.Cut(body, leftOut); ok {
			_, after, _ := strings.Cut(rest, "\n\n")
			body = before + after
		}
		bodies = append(bodies, strings.ReplaceAll(strings.Trim(body, "\n")[1:], "\n\t", "\n"))
	}
	return bodies, nil
}

// commands returns the arguments of each dedupbench command line.
func commands(text string) (lines []string) {
	for _, m := range regexp.MustCompile("go run \\./cmd/dedupbench ([^`#|\n]+)").FindAllStringSubmatch(text, -1) {
		lines = append(lines, strings.TrimSpace(m[1]))
	}
	return lines
}
