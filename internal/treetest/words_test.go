package treetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// replaced are words with several meanings, or that made sentences hard to read, and their
// replacements. The patterns do not match correct English in this module.
var replaced = []struct{ pattern, use string }{
	{`(?i)\bwhos?o?ever\b`, "the caller that, anyone who, code that"},
	{`(?i)\bsomebody\b`, "another program, another user, an operator"},
	{`\bnobody\b(?s:.{1,3})\b(has|had|reads|waits|holds|asks|knows)\b`, "no caller, no goroutine, no transaction"},
	{`(?i)\bmend(s|ed|ing)?\b`, "fix, correct"},
	{`(?i)\bfor ever\b`, "forever"},
	{`(?i)\bways on\b`, "recovery policies"},
	{`\bLosers\b`, "Alternatives considered"},
	{`(?i)\bhost (key|value|state)s?\b`, "application key, application value"},
	{`(?i)\bwhat the host\b|\bthe host (sees|can|must|gives)\b`, "the application"},
	{`\b(is|are|was|were) told (Claimed|Duplicate|Pending|InFlight|TooOld|ErrLeaseLost|why not)\b`, "gets Claimed"},
	{`\bfrom nothing in it\b`, "distinguishes nil from empty"},
	{`(?i)\bwhat there is\b`, "the contents, the existing claims"},
	{`(?i)\b(has|have) got\b`, "has"},
	{`(?i)\bto be had\b`, "available"},
	{`(?i)\bholds? up (no|nothing)\b`, "delays no other, delays nothing"},
	{`(?i)\bcan(not)? be told from\b`, "distinguished from"},
	{`(?i)\bheld? for possible\b`, "considered possible"},
	{`(?i)\bweeks? kept\b|\bkept weeks?\b`, "retained week"},
	{`(?i)\bclaims? that commits? by (itself|themselves)\b`, "at-most-once claim"},
	{`(?i)\b(take|takes|taking|took) (a |the |its )?claims? back\b`, "withdraw a claim"},
	{`(?i)\b(take|takes|taking|took) back (a |the |its |these )?claims?\b`, "withdraw a claim"},
	{`(?i)\bclaims? (that )?(is|are|was|were) (not )?taken back\b`, "the claim is withdrawn"},
	{`(?i)\bspace (is|was|may not be|comes|came) (given )?back\b`, "the space is freed, is free"},
	{`(?i)\b(give|gives|gave|giving) ([\w']+ ){0,4}space ([\w']+ ){0,4}back\b`, "frees the space"},
}

// patterns are the compiled patterns of replaced.
var patterns = func() (res []*regexp.Regexp) {
	for _, r := range replaced {
		res = append(res, regexp.MustCompile(r.pattern))
	}
	return res
}()

func TestReplacedWordsAreNotUsed(t *testing.T) {
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		path = filepath.ToSlash(path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (d.Name() == "testdata" || d.Name() == "bin" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(path, "treetest/words_test.go"):
			return nil
		}
		for _, text := range prose(t, path) {
			n++
			for _, problem := range words(text) {
				t.Errorf("%s: %s", path, problem)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 3000 {
		t.Errorf("%d texts are found", n)
	}
}

func TestReplacedWordIsDetected(t *testing.T) {
	for text, want := range map[string]int{
		"The error names the ways\non.":              1,
		"This is kept for ever, by whoever asks.":    2,
		"Each caller was told Claimed.":              1,
		"Amendments recommend a repair, forever.":    0,
		"The always on consumer has a host name.":    0,
		"// Losers leave; winners stay for everyone": 1,

		"A drop gives the disk space of a week back.":                                            1,
		"The space came back. No space is needed.":                                               1,
		"It takes back the claim, or took a claim back.\nThe claims that were taken back count.": 3,
		"Events of kept weeks, and the oldest week\nkept; a week keeps its claims.":              2,
		"A claim that commits by itself holds up nothing; the claim commits.":                    2,
		"What the host sees is what there is, on a host.":                                        2,
		"It cannot be told from one that is not to be had.":                                      2,
		"Somebody has got what the filter held for possible.":                                    3,
	} {
		if got := words(text); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}

// prose returns the comments and the strings of a Go file, and the text of a document.
func prose(t *testing.T, path string) (texts []string) {
	t.Helper()
	switch filepath.Ext(path) {
	case ".md":
		return []string{source(t, path)}
	case ".go":
	default:
		return nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, source(t, path), parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Comments {
		texts = append(texts, group.Text())
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				texts = append(texts, s)
			}
		}
		return true
	})
	return texts
}

// words lists the replaced words of a text, whose lines may break anywhere.
func words(text string) (problems []string) {
	text = strings.Join(strings.Fields(text), " ")
	for i, r := range replaced {
		for _, found := range patterns[i].FindAllString(text, -1) {
			problems = append(problems, strconv.Quote(found)+": write "+r.use)
		}
	}
	return problems
}
