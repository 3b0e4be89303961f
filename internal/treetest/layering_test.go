package treetest

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hapax-dev/hapax"

// rooms is the drawing of the packages in docs/architecture.md: the packages of this module that
// each may import, except in tests.
var rooms = map[string][]string{
	"":                           {},
	"weekbucket":                 {},
	"bloom":                      {"internal/offheap"},
	"engine":                     {"weekbucket", "bloom", "engine/internal/lane", "engine/limits", "engine/storage", "internal/decode", "internal/entry", "internal/keyspace", "internal/wait", "internal/crc32c", "internal/untrusted"},
	"engine/internal/lane":       {},
	"engine/limits":              {},
	"engine/storage":             {"weekbucket"},
	"engine/storage/sidecar":     {"engine/storage", "internal/crc32c"},
	"internal/entry":             {"internal/keyspace", "internal/decode"},
	"outbox":                     {"correlation", "engine", "engine/storage", "internal/decode", "internal/entry", "internal/kgohooks", "internal/untrusted", "redact"},
	"versions":                   {"engine", "engine/limits", "engine/storage", "internal/keyspace", "internal/untrusted"},
	"idempotency":                {"engine", "engine/limits", "internal/decode", "internal/quota", "internal/wait"},
	"listener":                   {"engine", "engine/limits", "internal/quota", "internal/wait", "internal/untrusted", "redact"},
	"correlation":                {},
	"internal/keyspace":          {},
	"internal/quota":             {"engine", "internal/keyspace", "weekbucket"},
	"internal/wait":              {},
	"internal/decode":            {"weekbucket"},
	"internal/kgohooks":          {},
	"internal/crashfs":           {},
	"internal/fuzztest":          {},
	"internal/crc32c":            {},
	"internal/offheap":           {},
	"internal/untrusted":         {},
	"internal/hostile":           {"redact"},
	"redact":                     {},
	"engine/storetest":           {"engine/storage", "engine/storage/sidecar", "weekbucket", "internal/crc32c"},
	"engine/enginetest":          {"engine", "engine/storage", "engine/storetest", "weekbucket"},
	"internal/kafkatest":         {},
	"internal/structure":         {},
	"engine/pebble":              {"engine/storage", "engine/storage/sidecar", "engine/storage/storedir", "weekbucket", "internal/decode", "internal/offheap", "internal/wait", "internal/crc32c", "internal/untrusted"},
	"engine/bolt":                {"engine/bolt/internal/pages", "engine/storage", "engine/storage/sidecar", "engine/storage/storedir", "internal/untrusted"},
	"engine/bolt/internal/pages": {"engine/storage", "internal/crc32c"},
	"telemetry":                  {"engine", "engine/limits", "weekbucket", "internal/untrusted", "redact"},
	"kafkaadapter":               {"engine", "engine/limits", "engine/storage", "weekbucket", "kafkaadapter/identify", "kafkaadapter/deadletter", "internal/wait", "internal/keyspace", "internal/kgohooks", "internal/untrusted", "redact"},

	"kafkaadapter/seen":       {"engine", "engine/limits", "kafkaadapter/identify"},
	"kafkaadapter/deadletter": {"engine", "engine/limits", "kafkaadapter/identify", "internal/decode", "internal/keyspace", "internal/untrusted"},
	"kafkaadapter/identify":   {"weekbucket", "correlation", "internal/untrusted"},

	"bench": {"engine", "engine/limits", "engine/storage", "engine/pebble", "engine/bolt", "kafkaadapter", "kafkaadapter/deadletter", "kafkaadapter/identify", "telemetry", "idempotency", "outbox", "versions", "correlation", "weekbucket", "internal/wait",
		"bench/internal/rawstore", "bench/internal/runner", "bench/internal/topics", "bench/internal/traffic"},
	"bench/internal/rawstore": {"engine/pebble"},
	"bench/internal/runner":   {},
	"bench/internal/topics":   {"bench/internal/traffic", "internal/wait"},
	"bench/internal/traffic":  {"engine", "weekbucket"},
	"bench/report":            {},
	"cmd/dedupbench":          {"bench", "bench/report"},

	// a separate module, with all packages below it
	"bench/peers":          {"bench/internal/runner", "bench/internal/topics", "bench/internal/traffic", "bench/peers/claimer", "bench/peers/consumer", "bench/peers/servers", "bench/report"},
	"bench/peers/claimer":  {"engine", "engine/pebble", "bench/internal/rawstore", "bench/internal/runner", "bench/internal/traffic", "bench/peers/servers", "bench/report"},
	"bench/peers/consumer": {"engine", "engine/pebble", "kafkaadapter", "kafkaadapter/deadletter", "bench/internal/rawstore", "bench/internal/runner", "bench/internal/topics", "bench/internal/traffic", "bench/peers/servers", "bench/peers/streams"},
	"bench/peers/servers":  {},
	"bench/peers/streams":  {"bench/peers/servers"},

	"integrations/grpcidempotency": {"engine", "engine/limits", "listener", "redact"}, // a separate module
	"integrations/watermilldedup":  {"engine", "engine/limits", "listener", "redact"}, // a separate module

	"examples/atmostonce":    {"engine", "engine/pebble", "kafkaadapter"},
	"examples/transactional": {"engine", "engine/pebble", "kafkaadapter", "kafkaadapter/deadletter"},
	"examples/balances":      {"engine", "engine/storage", "engine/pebble", "kafkaadapter", "kafkaadapter/deadletter", "telemetry"},
	"examples/cloudevents":   {"engine", "engine/pebble", "kafkaadapter", "kafkaadapter/deadletter", "kafkaadapter/identify"},
	"examples/replay":        {},
	"examples/outbox":        {"engine", "engine/pebble", "kafkaadapter", "kafkaadapter/deadletter", "outbox"},
	"examples/changes":       {"engine", "engine/pebble", "kafkaadapter", "kafkaadapter/deadletter", "kafkaadapter/identify", "versions"},
	"examples/edge":          {"engine", "engine/bolt"},

	"engine/storage/storedir": {"engine/storage", "engine/storage/sidecar"},
}

func TestPackagesImportOnlyWhatTheDrawingAllows(t *testing.T) {
	for _, problem := range breaches(t, ".") {
		t.Error(problem)
	}
}

func TestPlantedImportIsDetected(t *testing.T) {
	got := breaches(t, "internal/treetest/testdata/planted")
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

// breaches lists the imports below root that the drawing does not allow, and packages that are not
// in it.
func breaches(t *testing.T, root string) (problems []string) {
	t.Helper()
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
		allowed, ok := rooms[room]
		if !ok {
			problems = append(problems, fmt.Sprintf("%s: package %s is not in the drawing", path, room))
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if target, ours := strings.CutPrefix(imported, module+"/"); ours && !slices.Contains(allowed, target) {
				problems = append(problems, fmt.Sprintf("%s: %s imports %s", path, room, target))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return problems
}
