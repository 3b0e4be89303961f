package treetest

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hapax-dev/hapax"

// drawing returns the packages of this module that each package may import, except in tests, as
// docs/architecture.md draws them.
func drawing(t *testing.T) map[string][]string {
	t.Helper()
	drawn := map[string][]string{"": nil} // the root contains no code
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9/]+) +-> +([a-z0-9/, ]+)$`).FindAllStringSubmatch(source(t, "docs/architecture.md"), -1) {
		drawn[m[1]] = nil
		if m[2] != "nothing" {
			drawn[m[1]] = strings.Split(m[2], ", ")
		}
	}
	return drawn
}

// TestPackagesImportWhatIsDrawn checks the drawing both ways: it shows all packages and imports, and
// nothing else.
func TestPackagesImportWhatIsDrawn(t *testing.T) {
	drawn := drawing(t)
	imported, problems := breaches(t, ".", drawn)
	for room, targets := range drawn {
		if imported[room] == nil && room != "" {
			problems = append(problems, fmt.Sprintf("docs/architecture.md draws package %s, which does not exist", room))
		}
		for _, target := range targets {
			if !imported[room][target] {
				problems = append(problems, fmt.Sprintf("docs/architecture.md draws %s -> %s, which does not exist", room, target))
			}
		}
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestPlantedImportIsDetected(t *testing.T) {
	_, got := breaches(t, "internal/treetest/testdata/planted", drawing(t))
	if len(got) != 1 || !strings.Contains(got[0], "bloom imports engine") {
		t.Fatalf("a bloom that imports the engine: %q", got)
	}
}

func TestEdgeBuildLinksNoPebbleAndNoTelemetry(t *testing.T) {
	deps, err := exec.Command("go", "list", "-deps", "./engine/bolt").Output()
	if err != nil {
		t.Skip("the go command does not answer:", err)
	}
	if !strings.Contains(string(deps), "go.etcd.io/bbolt") {
		t.Fatalf("bbolt is not among the packages that engine/bolt links:\n%s", deps)
	}
	for dep := range strings.Lines(string(deps)) {
		for _, heavy := range []string{"cockroachdb/pebble", "prometheus", "opentelemetry", "franz-go"} {
			if strings.Contains(dep, heavy) {
				t.Errorf("an edge build links %s", strings.TrimSpace(dep))
			}
		}
	}
}

func TestLibrariesLinkNoPluginsAndNoTelemetrySDK(t *testing.T) {
	linked := func(packages ...string) (found []string) {
		deps, err := exec.Command("go", append([]string{"list", "-deps"}, packages...)...).Output()
		if err != nil {
			t.Skip("the go command does not answer:", err)
		}
		for dep := range strings.Lines(string(deps)) {
			for _, part := range []string{"franz-go/plugin/", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters"} {
				if strings.HasPrefix(strings.TrimPrefix(dep, "github.com/twmb/"), part) {
					found = append(found, strings.TrimSpace(dep))
				}
			}
		}
		return found
	}
	if found := linked("./kafkaadapter", "./telemetry", "./engine/pebble"); len(found) > 0 {
		t.Errorf("the libraries link %q: the application should choose that", found)
	}
	if found := linked("./examples/balances"); len(found) < 5 {
		t.Errorf("the example links only %q: the test looks for the wrong names", found)
	}
}

// The embedded broker and package testing are for tests: applications do not link them.
func TestLibrariesLinkNoTestPackages(t *testing.T) {
	linked := func(packages ...string) (found []string) {
		deps, err := exec.Command("go", append([]string{"list", "-deps"}, packages...)...).Output()
		if err != nil {
			t.Skip("the go command does not answer:", err)
		}
		for dep := range strings.Lines(string(deps)) {
			dep = strings.TrimSpace(dep)
			if dep == "testing" || strings.HasSuffix(dep, "/kfake") || strings.HasPrefix(dep, module+"/hapaxtest") {
				found = append(found, dep)
			}
		}
		return found
	}
	if found := linked("./kafkaadapter/...", "./outbox", "./listener", "./examples/edge", "./examples/transactional", "./cmd/hapax"); len(found) > 0 {
		t.Errorf("the libraries and examples link %q", found)
	}
	if found := linked("./hapaxtest"); len(found) != 3 {
		t.Errorf("hapaxtest links %q: the test looks for the wrong names", found)
	}
}

// TestDependenciesOfIntegrationsStayThere checks that the root's go.mod lists only the needs of its
// own packages.
func TestDependenciesOfIntegrationsStayThere(t *testing.T) {
	mods, err := filepath.Glob("integrations/*/go.mod")
	if err != nil || len(mods) == 0 {
		t.Fatal(mods, err)
	}
	mods = append(mods, "bench/peers/go.mod")
	for _, file := range []string{"go.mod", "go.sum"} {
		for _, foreign := range []string{"ThreeDotsLabs/watermill", "google.golang.org/grpc", "google.golang.org/genproto", "redis/go-redis", "jackc/pgx", "dgraph-io/badger", "prometheus/prometheus"} {
			if strings.Contains(source(t, file), foreign) {
				t.Errorf("%s names %s: packages that need it are modules of their own", file, foreign)
			}
		}
	}
	for _, mod := range mods {
		text := source(t, mod)
		if !strings.Contains(text, "module "+module+"/"+filepath.ToSlash(filepath.Dir(mod))+"\n") {
			t.Errorf("%s has another module path than its directory", mod)
		}
		if strings.Contains(text, module+" v") && !strings.Contains(text, "replace "+module+" => ../..\n") {
			t.Errorf("%s does not use the module beside it", mod)
		}
	}
}

// breaches returns what the packages below root import, and lists the imports that are not drawn, and
// packages that are not.
func breaches(t *testing.T, root string, drawn map[string][]string) (imported map[string]map[string]bool, problems []string) {
	t.Helper()
	imported = map[string]map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		room := strings.TrimPrefix(filepath.ToSlash(rel), ".")
		allowed, ok := drawn[room]
		if !ok {
			problems = append(problems, fmt.Sprintf("%s: package %s is not in the drawing", path, room))
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		if imported[room] == nil {
			imported[room] = map[string]bool{}
		}
		for _, spec := range file.Imports {
			target, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if !ours {
				continue
			}
			imported[room][target] = true
			if !slices.Contains(allowed, target) {
				problems = append(problems, fmt.Sprintf("%s: %s imports %s", path, room, target))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return imported, problems
}
