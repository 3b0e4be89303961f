package treetest

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	loggerOption = regexp.MustCompile(`(?m)^\s+Logger +\*slog\.Logger$`)
	// what wraps it, or passes it on to a package that does
	loggerWrapped   = regexp.MustCompile(`untrusted\.Logger\(|Logger: o\.Logger, IDs: o\.IDs`)
	telemetryOption = regexp.MustCompile(`(?m)^\tTelemetry +telemetry\.Options$`)
	bareID          = regexp.MustCompile(`(slog\.\w+\(|, |\()"(id|\w+_id|key|tenant)", `)
)

// careless returns what is wrong with the logging of packages, of which sources has the code.
func careless(sources map[string]string) (problems []string) {
	for dir, code := range sources {
		if loggerOption.MatchString(code) && !loggerWrapped.MatchString(code) {
			problems = append(problems, dir+" has an option Logger: wrap it with untrusted.Logger, so that what strangers say is one short line")
		}
		if !strings.Contains(code, `"log/slog"`) {
			continue
		}
		if telemetryOption.MatchString(code) && !strings.Contains(code, "Telemetry.Complete()") {
			problems = append(problems, dir+" logs to an option Telemetry: call its Complete, which wraps the logger")
		}
		for _, line := range strings.Split(code, "\n") {
			line, _, _ = strings.Cut(line, "//")
			if bareID.MatchString(line) && !strings.Contains(line, "IDs.Attr(") && !strings.Contains(line, "slog.String(\"consumer_scope_id\"") {
				problems = append(problems, dir+" logs an id: use redact.IDs.Attr: "+strings.TrimSpace(line))
			}
		}
	}
	return problems
}

func TestLogsOfPackagesShowIDsAndErrorsWithCare(t *testing.T) {
	sources := map[string]string{}
	for _, root := range []string{"engine", "kafkaadapter", "listener", "outbox", "versions", "idempotency", "telemetry", "integrations", "correlation", "internal/quota"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				sources[filepath.Dir(path)] += source(t, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	with := 0
	for _, code := range sources {
		if loggerOption.MatchString(code) || telemetryOption.MatchString(code) {
			with++
		}
	}
	if with < 8 {
		t.Errorf("%d packages have an option Logger or Telemetry: the test looks for the wrong text", with)
	}
	for _, problem := range careless(sources) {
		t.Error(problem)
	}
}

func TestCarelessLogsAreDetected(t *testing.T) {
	for _, code := range []string{
		"\"log/slog\"\n\tLogger *slog.Logger\n",
		"\"log/slog\"\n\tTelemetry telemetry.Options\n",
		"\"log/slog\"\n\tlog.Warn(\"m\", \"offset\", 1, \"id\", id)\n",
		"\"log/slog\"\n\tlog.LogAttrs(ctx, level, \"m\", slog.String(\"correlation_id\", id))\n",
	} {
		if len(careless(map[string]string{"p": code})) != 1 {
			t.Errorf("not detected: %s", code)
		}
	}
}
