package treetest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// documents returns the names of all Markdown files of the tree.
func documents(t *testing.T) (names []string) {
	t.Helper()
	logRoot(t)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md", "integrations/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			names = append(names, filepath.ToSlash(name))
		}
	}
	if len(names) < 40 {
		t.Fatalf("%d documents are found", len(names))
	}
	return names
}

// TestLinksOfDocumentsAreValid checks that each link of a document refers to a file of the tree or
// to a heading.
func TestLinksOfDocumentsAreValid(t *testing.T) {
	n := 0
	for _, name := range documents(t) {
		links, problems := brokenLinks(name, source(t, name))
		n += links
		for _, problem := range problems {
			t.Errorf("%s: %s", name, problem)
		}
	}
	if n < 60 {
		t.Errorf("%d links are found", n)
	}
}

func TestBrokenLinkIsDetected(t *testing.T) {
	for text, want := range map[string]int{
		"[a](docs/stores.md) [b](docs/stores.md#one-process) [c](#a-heading-of-its-own)\n## A heading, of its `own`\n": 0,
		"[a](docs/no-such-page.md)":              1,
		"[a](docs/stores.md#no-such-heading)":    1,
		"[a](#not-here)\n```\n# Not here\n```\n": 1,
		"![a](docs/no-such-picture.svg)":         1,
		"`[a](in-code.md)` https://example.com":  0,
		"[a](https://example.com/no-such-page)":  0,
	} {
		if _, problems := brokenLinks("README.md", text); len(problems) != want {
			t.Errorf("%q: %q, want %d", text, problems, want)
		}
	}
}

var (
	mdLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	inCode  = regexp.MustCompile("`[^`\n]+`")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
)

// brokenLinks returns the number of links in a document and the errors in them. Links to other
// hosts are not checked.
func brokenLinks(name, text string) (n int, problems []string) {
	text = fenced.ReplaceAllString(text, "")
	for _, m := range mdLink.FindAllStringSubmatch(inCode.ReplaceAllString(text, ""), -1) {
		path, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, ":") {
			continue
		}
		n++
		target := text
		if path != "" {
			file := filepath.Join(filepath.Dir(name), path)
			info, err := os.Stat(file)
			if err != nil {
				problems = append(problems, "there is no "+m[1])
				continue
			}
			if info.IsDir() || anchor == "" {
				continue
			}
			b, err := os.ReadFile(file)
			if err != nil {
				problems = append(problems, err.Error())
				continue
			}
			target = fenced.ReplaceAllString(string(b), "")
		}
		if anchor != "" && !anchors(target)[anchor] {
			problems = append(problems, "no heading has the anchor of "+m[1])
		}
	}
	return n, problems
}

// anchors returns the anchors of the headings of a document, made as GitHub makes them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all[strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, strings.TrimSpace(m[1]))] = true
	}
	return all
}

// Each page begins with its purpose, and the README links to it.
func TestPagesStateTheirPurposeAndAreInTheIndex(t *testing.T) {
	index := source(t, "README.md")
	names, err := filepath.Glob("docs/*.md")
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		name = filepath.ToSlash(name)
		title, rest, _ := strings.Cut(source(t, name), "\n\n")
		if !strings.HasPrefix(title, "# ") || strings.Contains(title, "\n") || !strings.HasPrefix(rest, "This page ") {
			t.Errorf("%s does not begin with a title and then a sentence \"This page ...\" that says what it is for", name)
		}
		if !strings.Contains(index, "("+name+")") {
			t.Errorf("README.md has no link to %s", name)
		}
	}
}

// The README is short, and its first code is visible when it opens.
func TestReadmeIsShort(t *testing.T) {
	text := source(t, "README.md")
	if len(text) > 9*1024 {
		t.Errorf("README.md has %d bytes, more than 9 KiB", len(text))
	}
	before, _, ok := strings.Cut(text, "```go\n")
	if line := strings.Count(before, "\n") + 1; !ok || line > 25 {
		t.Errorf("the first Go code of README.md is on line %d", line)
	}
}
