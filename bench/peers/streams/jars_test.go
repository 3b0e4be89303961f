package streams

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOtherJarsAreRefused: a jar with another content, one too many, and one too few.
func TestOtherJarsAreRefused(t *testing.T) {
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(t.TempDir(), "jars.sha256")
	var lines strings.Builder
	for _, name := range []string{"a.jar", "b.jar"} {
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256([]byte("content of "+name)), name)
	}
	write(list, lines.String())
	for name, tt := range map[string]struct {
		change func(dir string)
		ok     bool
	}{
		"the jars":           {func(string) {}, true},
		"another content":    {func(dir string) { write(filepath.Join(dir, "b.jar"), "content of B.jar") }, false},
		"one too many":       {func(dir string) { write(filepath.Join(dir, "c.jar"), "") }, false},
		"one that is absent": {func(dir string) { _ = os.Remove(filepath.Join(dir, "a.jar")) }, false},
	} {
		dir := t.TempDir()
		write(filepath.Join(dir, "a.jar"), "content of a.jar")
		write(filepath.Join(dir, "b.jar"), "content of b.jar")
		tt.change(dir)
		if err := checkJars(dir, list); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestListOfJarsIsComplete: the list names what the build needs, each with a hash.
func TestListOfJarsIsComplete(t *testing.T) {
	b, err := sources.ReadFile("jars.sha256")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kafka-streams-", "kafka-clients-", "rocksdbjni-", "jackson-databind-", "slf4j-simple-"} {
		if !strings.Contains(string(b), "  "+name) {
			t.Errorf("%s is not in the list", name)
		}
	}
	for line := range strings.Lines(string(b)) {
		if hash, _, ok := strings.Cut(line, "  "); !ok || len(hash) != 64 {
			t.Errorf("%q", line)
		}
	}
}
