package kafkaadapter

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The failure page lists only reasons of stops that the code has.
func TestDocumentedReasonsOfStopsExist(t *testing.T) {
	var code strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.go") && name != "doc.go" {
			code.WriteString(read(t, name))
		}
	}
	reasons := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:stop|stopBefore|stopForNow|report|hinder)\("(\w+)"|return "(\w+)"|stops\.WithLabelValues\(p\.pos\.Topic, "(\w+)"`).FindAllStringSubmatch(code.String(), -1) {
		reasons[m[1]+m[2]+m[3]] = true
	}
	for _, reason := range stopReasons {
		if !reasons[reason] {
			t.Errorf("%s is listed as a reason, and no partition stops for it", reason)
		}
	}
	for _, m := range regexp.MustCompile(`(?:stop|stopBefore|stopForNow|report|hinder)\("(\w+)"`).FindAllStringSubmatch(code.String(), -1) {
		if !slices.Contains(stopReasons[:], m[1]) {
			t.Errorf("the reason %s is not listed in stopReasons", m[1])
		}
	}
	named := regexp.MustCompile("stops `(\\w+)`").FindAllStringSubmatch(read(t, "../docs/failures.md"), -1)
	if len(named) < 15 {
		t.Errorf("%d reasons are named", len(named))
	}
	for _, m := range named {
		if !reasons[m[1]] {
			t.Errorf("the reason %s is documented, and no partition stops for it", m[1])
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
