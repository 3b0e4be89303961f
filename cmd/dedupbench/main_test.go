package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/bench"
)

// command is the built command.
var command string

// TestMain builds the command, without the race detector: what it runs is tested with it elsewhere.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "dedupbench-test-")
	if err != nil {
		panic(err)
	}
	command = filepath.Join(dir, "dedupbench.exe")
	code := 1
	if out, err := exec.Command("go", "build", "-o", command, ".").CombinedOutput(); err != nil {
		_, _ = os.Stderr.Write(out)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// An outcome is how a run of the command ended.
type outcome struct {
	code           int
	stdout, stderr string
}

// dedupbench runs the command in a process of its own.
func dedupbench(t *testing.T, args ...string) outcome {
	t.Helper()
	tmp := t.TempDir()
	cmd := exec.Command(command, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "TMP="+tmp)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if strings.Contains(stderr.String(), "goroutine ") {
		t.Fatalf("%v: %s", args, stderr.String())
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("%v: %s was left in the temporary directory", args, left[0].Name())
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// fields parses the last line of stdout.
func (o outcome) fields(t *testing.T) map[string]any {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(o.stdout, "\n"), "\n")
	var fields map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &fields); err != nil {
		t.Fatalf("the last line is no JSON object: %v\nstdout %q\nstderr %q", err, o.stdout, o.stderr)
	}
	return fields
}

// want checks some fields.
func want(t *testing.T, fields map[string]any, wanted map[string]any) {
	t.Helper()
	for name, w := range wanted {
		if n, ok := w.(int); ok {
			w = float64(n)
		}
		if got := fields[name]; got != w {
			t.Errorf("%s is %v, want %v", name, got, w)
		}
	}
}

const log = "id,time,source\na,2025-05-04T13:40:18.110Z,x\nb,2025-05-05T00:00:00Z,x\na,2025-05-04T13:40:18.110Z,y\n,2025-05-04T13:40:18Z,x\na,2025-05-06T13:40:18.110Z,y\nc,2999-01-01T00:00:00Z,z\n"

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplay(t *testing.T) {
	file := write(t, "log.csv", []byte(log))
	for _, store := range []string{"pebble", "bolt"} {
		dir := filepath.Join(t.TempDir(), "store")
		first := dedupbench(t, "replay", "--json", "--keep-weeks", "0", file, "--store", store, "--dir", dir)
		want(t, first.fields(t), map[string]any{"records": 6, "claimed": 3, "duplicate": 1, "too_old": 0, "too_new": 1, "rejected": 1, "weeks": 2, "error": nil})
		again := dedupbench(t, "replay", file, "--batch=2", "--dir", dir, "--store", store, "--keep-weeks", "0", "--json")
		want(t, again.fields(t), map[string]any{"records": 6, "claimed": 0, "duplicate": 4, "too_new": 1, "rejected": 1, "weeks": 2})
		if first.code != 0 || again.code != 0 {
			t.Errorf("exit status %d, then %d", first.code, again.code)
		}
		rows := again.fields(t)["rejected_rows"].([]any)
		if row := rows[0].(map[string]any); len(rows) != 1 || row["line"] != 5.0 {
			t.Errorf("rejected rows %v", rows)
		}
	}
}

func TestReplayTellsWhatIsTooOld(t *testing.T) {
	o := dedupbench(t, "replay", write(t, "log.csv", []byte(log)), "--keep-weeks", "3", "--json")
	want(t, o.fields(t), map[string]any{"records": 6, "claimed": 0, "duplicate": 0, "too_old": 4, "too_new": 1, "rejected": 1, "weeks": 0})
}

func TestReplayOfTheRecordedLog(t *testing.T) {
	o := dedupbench(t, "replay", filepath.Join("..", "..", "bench", "data", "openstack_changes.csv.gz"), "--keep-weeks", "0", "--json")
	want(t, o.fields(t), map[string]any{"records": 62133, "claimed": 51094, "duplicate": 11039, "rejected": 0, "weeks": 847})
}

func TestReplayIsReadable(t *testing.T) {
	o := dedupbench(t, "replay", write(t, "log.csv", []byte(log)), "--keep-weeks", "0")
	if !strings.Contains(o.stdout, "claimed") || !strings.Contains(o.stdout, "line 5: no id") || strings.Contains(o.stdout, "{") {
		t.Errorf("stdout %q", o.stdout)
	}
}

func TestReplayOfATruncatedLogKeepsTheCounts(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	fmt.Fprintln(z, "id,time")
	for i := range 5000 {
		fmt.Fprintf(z, "%x,2025-05-04T13:40:18Z\n", uint32(i)*2654435761)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	o := dedupbench(t, "replay", write(t, "log.csv.gz", b.Bytes()[:b.Len()/2]), "--keep-weeks", "0", "--json")
	f := o.fields(t)
	claimed, _ := f["claimed"].(float64)
	rejected, _ := f["rejected"].(float64)
	if o.code != 1 || claimed < 100 || claimed+rejected != f["records"] || f["weeks"] != 1.0 || f["error"] == nil {
		t.Errorf("exit status %d, %v", o.code, f)
	}
}

func TestFailuresAreOneLineAndJSON(t *testing.T) {
	file := write(t, "log.csv", []byte(log))
	drawable := write(t, "reopen.json", []byte(`{"acked":1,"first_verdict_ms":1,"about":{"kind":"reopen"}}`))
	damaged := filepath.Join(t.TempDir(), "store")
	if o := dedupbench(t, "replay", file, "--keep-weeks", "0", "--dir", damaged); o.code != 0 {
		t.Fatal(o.stderr)
	}
	manifests, _ := filepath.Glob(filepath.Join(damaged, "MANIFEST-*"))
	for _, path := range manifests {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		code int
		args []string
	}{
		{"no file", 1, []string{"replay", "/does/not/exist.csv"}},
		{"not a log", 1, []string{"replay", write(t, "x.csv", []byte("hello\n"))}},
		{"not a store", 1, []string{"replay", file, "--dir", filepath.Dir(file)}},
		{"damaged store", 1, []string{"replay", file, "--dir", damaged}},
		{"unknown flag", 2, []string{"replay", file, "--nothing"}},
		{"unknown store", 2, []string{"replay", file, "--store", "redis"}},
		{"unknown command", 2, []string{"reply", file}},
		{"no command", 2, nil},
		{"bad share", 2, []string{"claims", "--dup", "1.5"}},
		{"no batch in flight", 2, []string{"claims", "--in-flight", "0"}},
		{"too many in flight", 2, []string{"claims", "--in-flight", "100", "--goroutines", "100"}},
		{"unknown repeats", 2, []string{"claims", "--repeats", "some"}},
		{"negative", 2, []string{"reopen", "--n", "-1"}},
		{"balances without a transaction", 2, []string{"kafka", "--handler", "balances", "--mode", "own"}},
		{"adding without accounts", 2, []string{"kafka", "--add"}},
		{"one account", 2, []string{"kafka", "--handler", "balances", "--accounts", "1"}},
		{"slow beside nobody", 2, []string{"kafka", "--slow", "1ms", "--partitions", "1"}},
		{"slow syncs of bbolt", 2, []string{"kafka", "--slow-sync", "1ms", "--store", "bolt"}},
		{"slow syncs and kills", 2, []string{"kafka", "--slow-sync", "1ms", "--kills", "1"}},
		{"bolt has no tables", 2, []string{"replay", file, "--store", "bolt", "--small-tables"}},
		{"bolt has no cache", 2, []string{"claims", "--cache-mib", "8", "--store", "bolt"}},
		{"a cache below 0", 2, []string{"claims", "--cache-mib", "-8"}},
		{"a cache that overflows", 2, []string{"claims", "--cache-mib", "99999999999999"}},
		{"kills without end", 2, []string{"kill", "--kills", "9223372036854775807"}},
		{"kills of a consumer without end", 2, []string{"kafka", "--kills", "9223372036854775807"}},
		{"kills of layers without end", 2, []string{"layers", "--kills", "9223372036854775807"}},
		{"requests without end", 2, []string{"layers", "--n", "9223372036854775807"}},
		{"claims to reopen without end", 2, []string{"reopen", "--n", "9223372036854775807"}},
		{"weeks without end", 2, []string{"replay", file, "--keep-weeks", "5201"}},
		{"no brokers", 2, []string{"kafka", "--brokers", ""}},
		{"a blank scope", 2, []string{"replay", file, "--scope", " "}},
		{"no file of a report", 2, []string{"report", "/does/not/exist.json"}},
		{"no JSON in a report", 2, []string{"report", write(t, "x.json", []byte("{"))}},
		{"nothing to draw", 2, []string{"report", write(t, "kafka.json", []byte(`{"about":{"kind":"kafka"}}`))}},
		{"no place for a page", 1, []string{"report", drawable, "--out", t.TempDir()}},
		{"no place for pictures", 1, []string{"report", drawable, "--out", os.DevNull, "--svg", drawable}},
		{"no name of a page", 2, []string{"report", drawable, "--out", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := dedupbench(t, append(tt.args, "--json")...)
			if o.code != tt.code {
				t.Errorf("exit status %d, want %d", o.code, tt.code)
			}
			if f := o.fields(t); f["error"] == nil || f["error"] == "" {
				t.Errorf("fields %v", f)
			}
			if tt.args != nil && tt.args[0] == "claims" && !strings.Contains(o.stderr, tt.args[1]) {
				t.Errorf("the error does not name %s: %s", tt.args[1], o.stderr)
			}
			if lines := strings.Count(strings.TrimSpace(o.stderr), "\n") + 1; lines != 1 || o.stderr == "" {
				t.Errorf("stderr has %d lines: %s", lines, o.stderr)
			}
		})
	}
}

func TestWrongUseIsToldInOneLineWithoutATable(t *testing.T) {
	noDir := write(t, "file", nil)
	log := write(t, "log.csv", []byte(log))
	for _, args := range [][]string{ // not wrong use, but nothing was counted
		{"replay", log, "--dir", noDir}, {"replay", log, "--dir", filepath.Dir(log)}, {"replay", log, "--dir", filepath.Dir(log), "--store", "bolt"},
		{"kafka", "--brokers", "127.0.0.1:1"},
	} {
		if o := dedupbench(t, args...); o.code != 1 || o.stdout != "" || strings.Count(o.stderr, "\n") != 1 || args[0] == "replay" && !strings.Contains(o.stderr, "give ") {
			t.Errorf("%v: exit status %d, stdout %q, stderr %q", args, o.code, o.stdout, o.stderr)
		}
	}
	for _, args := range [][]string{{"drop", "--scopes", "0"}, {"claims", "--dup", "1.5"}, {"kafka", "--accounts", "1", "--handler", "balances"}} {
		o := dedupbench(t, args...)
		if o.code != 2 || o.stdout != "" || strings.Count(o.stderr, "\n") != 1 {
			t.Errorf("%v: exit status %d, stdout %q, stderr %q", args, o.code, o.stdout, o.stderr)
		}
		if name := strings.TrimPrefix(args[1], "--"); !strings.Contains(o.stderr, name) {
			t.Errorf("the error does not name %s: %s", name, o.stderr)
		}
	}
}

func TestErrorOfSeveralLinesIsToldInOne(t *testing.T) {
	for name, tell := range map[string]func(*output, error) int{"a run": (*output).exit, "a command line": (*output).refuse} {
		for _, first := range []error{errors.New("a"), bench.ErrUsage} {
			var stderr bytes.Buffer
			o := &output{stderr: &stderr, command: "replay"}
			tell(o, errors.Join(first, errors.New("b\r\n\tc")))
			if told := stderr.String(); strings.Count(told, "\n") != 1 || !strings.Contains(told, first.Error()+" b c") {
				t.Errorf("%s: told %q", name, told)
			}
		}
	}
}

func TestClaims(t *testing.T) {
	o := dedupbench(t, "claims", "--n", "20000", "--dup", "0.2", "--baseline", "--ids", "ulid", "--json")
	f := o.fields(t)
	positive := []string{"claims_per_s", "baseline_per_s", "ratio", "bytes_per_claim", "write_amplification", "heap_bytes", "p50_us", "p99_us", "p999_us", "last_over_first"}
	if runtime.GOOS == "linux" {
		positive = append(positive, "cpu_us_per_claim", "rss_bytes")
	}
	for _, name := range positive {
		if n, ok := f[name].(float64); !ok || n <= 0 {
			t.Errorf("%s is %v", name, f[name])
		}
	}
	want(t, f, map[string]any{"events": 40000})
	if grid, _ := f["baseline_grid"].([]any); len(grid) != 2 {
		t.Errorf("the grid is %v, want two sizes of memtables with one batch in flight", grid)
	}
	if n, ok := f["filter_fp_rate"].(float64); !ok || n > 0.01 || o.code != 0 {
		t.Errorf("exit status %d, filter_fp_rate %v", o.code, f["filter_fp_rate"])
	}
}

// The report says whether and when filters were full.
func TestClaimsWithFullFilters(t *testing.T) {
	args := []string{"claims", "--n", "20000", "--dup", "0"}
	saturated := func(more ...string) any {
		return dedupbench(t, append(append(slices.Clone(args), "--json"), more...)...).fields(t)["filters_saturated_at"]
	}
	if at := saturated(); at != nil {
		t.Errorf("the default is full after %v events", at)
	}
	if at, ok := saturated("--max-filter-bytes", "8192").(float64); !ok || at != 18000 {
		t.Errorf("8 KiB are full after %v events, want 18000: the first tenth fits", at)
	}
	if o := dedupbench(t, append(args, "--max-filter-bytes", "64")...); o.code != 0 || !strings.Contains(o.stdout, "filters saturated at") {
		t.Errorf("exit status %d: %s", o.code, o.stdout)
	}
	if o := dedupbench(t, append(args, "--max-filter-bytes", "281474976710657")...); o.code != 2 || !strings.Contains(o.stderr, "--max-filter-bytes") {
		t.Errorf("exit status %d: %s", o.code, o.stderr)
	}
}

func TestClaimsWithSeveralBatchesInFlight(t *testing.T) {
	for store, settings := range map[string]int{"pebble": 4, "bolt": 2} {
		o := dedupbench(t, "claims", "--n", "10000", "--dup", "0.5", "--repeats", "all", "--in-flight", "4", "--goroutines", "2", "--batch", "100",
			"--baseline", "--rounds", "3", "--store", store, "--json")
		f := o.fields(t)
		want(t, f, map[string]any{"events": 30000, "error": nil})
		grid, _ := f["baseline_grid"].([]any)
		ratios, _ := f["ratios"].([]any)
		if len(grid) != settings || len(ratios) != 3 || f["baseline_setting"] == "" || o.code != 0 {
			t.Errorf("%s: exit status %d, %v", store, o.code, f)
		}
		if claimed, _ := f["claimed"].(float64); claimed < 14_000 || claimed > 16_000 {
			t.Errorf("%s: %v of 30,000 events are claimed, half are repeats", store, f["claimed"])
		}
	}
}

func TestDrop(t *testing.T) {
	o := dedupbench(t, "drop", "--n", "60000", "--scopes", "2", "--json")
	f := o.fields(t)
	want(t, f, map[string]any{"late_verdict": "too_old", "buckets_dropped": 2, "claims": 60000})
	for _, name := range []string{"drop_ms", "bytes_before", "bytes_after", "reclaimed_share", "reclaim_s", "claims_during", "max_stall_ms"} {
		if n, ok := f[name].(float64); !ok || n <= 0 {
			t.Errorf("%s is %v", name, f[name])
		}
	}
	if share := f["expected_share"].(float64); share < 0.2 || share > 0.3 || o.code != 0 {
		t.Errorf("exit status %d, expected_share %v: %s", o.code, share, o.stderr)
	}
}

func TestReopen(t *testing.T) {
	for _, store := range []string{"pebble", "bolt"} {
		o := dedupbench(t, "reopen", "--n", "20000", "--store", store, "--json")
		f := o.fields(t)
		want(t, f, map[string]any{"lost": 0, "filter_source": "journal"})
		if f["acked"].(float64) < 20000 || f["open_ms"].(float64) <= 0 || f["first_verdict_ms"].(float64) < f["open_ms"].(float64) || o.code != 0 {
			t.Errorf("exit status %d, %v", o.code, f)
		}
	}
}

func TestKill(t *testing.T) {
	o := dedupbench(t, "kill", "--kills", "2", "--mode", "work", "--json")
	want(t, o.fields(t), map[string]any{"kills": 2, "lost": 0, "claimed_twice": 0, "state_mismatch": 0, "error": nil})
	if o.code != 0 {
		t.Error(o.stderr)
	}
}

func TestDemo(t *testing.T) {
	o := dedupbench(t, "demo", "--n", "20000", "--kills", "2", "--json")
	f := o.fields(t)
	want(t, f, map[string]any{"sent": 20000, "lost": 0, "handled_twice": 0, "kills": 2, "error": nil})
	if f["handled"] != f["distinct"] || f["distinct"].(float64) < 15000 || o.code != 0 {
		t.Errorf("exit status %d, %v: %s", o.code, f, o.stderr)
	}
	for _, other := range []string{"in_memory_set", "at_least_once"} {
		if twice := f[other].(map[string]any)["handled_twice"].(float64); twice <= 0 {
			t.Errorf("%s handled nothing twice: %v", other, f)
		}
	}
}

func TestKafkaWithKills(t *testing.T) {
	for _, mode := range []string{"work", "own"} {
		o := dedupbench(t, "kafka", "--n", "20000", "--mode", mode, "--kills", "2", "--partitions", "3", "--json")
		f := o.fields(t)
		want(t, f, map[string]any{"produced": 20000, "handled_twice": 0, "state_mismatch": 0, "kills": 2, "ratio": nil, "claims_per_s": nil, "error": nil})
		if lost, risk := f["lost"].(float64), f["at_risk"].(float64); lost > risk || mode == "work" && lost != 0 || o.code != 0 {
			t.Errorf("exit status %d, %v: %s", o.code, f, o.stderr)
		}
	}
}

func TestKafkaRates(t *testing.T) {
	for _, mode := range []string{"work", "own"} {
		o := dedupbench(t, "kafka", "--n", "10000", "--mode", mode, "--partitions", "3", "--idle", "100ms", "--json")
		f := o.fields(t)
		want(t, f, map[string]any{"lost": 0, "handled_twice": 0, "state_mismatch": 0, "kills": 0})
		positive := []string{"records_per_s", "raw_records_per_s", "claims_per_s", "ratio", "all_running_s"}
		if runtime.GOOS == "linux" {
			positive = append(positive, "cpu_us_per_record")
		}
		for _, rate := range positive {
			if v, ok := f[rate].(float64); !ok || v <= 0 {
				t.Errorf("mode %s: %s is %v", mode, rate, f[rate])
			}
		}
	}
}

func TestKafkaWithBalances(t *testing.T) {
	base := []string{"kafka", "--n", "10000", "--partitions", "3", "--handler", "balances", "--accounts", "20", "--idle", "0", "--json"}
	right := map[string]any{"lost": 0, "handled_twice": 0, "state_mismatch": 0, "balances_wrong": 0, "error": nil}
	for _, more := range [][]string{nil, {"--accounts-per-partition"}, {"--add"}, {"--kills", "2"}, {"--kills", "2", "--add"}} {
		o := dedupbench(t, append(base, more...)...)
		f := o.fields(t)
		want(t, f, right)
		want(t, f, map[string]any{"handled": f["distinct"]})
		if _, ok := f["conflicts"].(float64); !ok || o.code != 0 {
			t.Errorf("%v: exit status %d, %v: %s", more, o.code, f, o.stderr)
		}
		if len(more) == 0 || more[0] != "--kills" { // the last calls before a kill are in no count
			if calls, distinct := f["handler_calls"].(float64), f["distinct"].(float64); calls < distinct {
				t.Errorf("%v: %v calls of the handler for %v events", more, calls, distinct)
			}
		}
	}
}

func TestKafkaWithASlowHandlerAndSlowSyncs(t *testing.T) {
	o := dedupbench(t, "kafka", "--n", "10000", "--partitions", "3", "--handler", "decode", "--slow", "1ms", "--slow-sync", "1ms", "--idle", "0", "--json")
	f := o.fields(t)
	for _, field := range []string{"beside_slow", "with_slow_sync"} {
		if share, ok := f[field].(float64); !ok || share <= 0 || o.code != 0 {
			t.Errorf("exit status %d, %s in %v: %s", o.code, field, f, o.stderr)
		}
	}
}

func TestLayers(t *testing.T) {
	o := dedupbench(t, "layers", "--n", "500", "--kills", "1", "--json")
	f := o.fields(t)
	want(t, f, map[string]any{
		"requests": 500, "executed": 500, "executed_twice": 0, "replayed_identical": f["retries"], "events": 500, "handled_twice": 0, "rows": 500,
		"wrong_version": 0, "outbox_sent": 1000, "outbox_lost": 0, "outbox_doubled_downstream": 0, "kills": 1, "error": nil,
	})
	if f["retries"].(float64) <= 0 || o.code != 0 {
		t.Errorf("exit status %d, %v: %s", o.code, f, o.stderr)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestReportThatCannotBeWrittenFails(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log.csv")
	if err := os.WriteFile(log, []byte("id,time\na,2026-01-01T00:00:00Z\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	if code := run(t.Context(), []string{"replay", log, "--json"}, fullDisk{}, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "could not be written") {
		t.Fatalf("exit status %d, stderr %q", code, stderr.String())
	}
}

func TestReportDrawsWhatCommandsPrint(t *testing.T) {
	o := dedupbench(t, "claims", "--n", "5000", "--json")
	dir := t.TempDir()
	file, page := filepath.Join(dir, "claims.json"), filepath.Join(dir, "page.html")
	if err := os.WriteFile(file, []byte(o.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	const wantFigures = 3
	o = dedupbench(t, "report", file, "--out", page, "--svg", filepath.Join(dir, "svg"))
	b, err := os.ReadFile(page)
	if o.code != 0 || err != nil || !strings.Contains(string(b), "claims --n 5000 --json") || strings.Count(string(b), "<svg") != wantFigures {
		t.Errorf("%+v, %v: %.3000s", o, err, b)
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "svg", "latency.svg")); err != nil || !strings.HasPrefix(string(svg), "<svg") {
		t.Errorf("%v: %.200s", err, svg)
	}
	want(t, dedupbench(t, "report", file, "--out", page, "--json").fields(t), map[string]any{"page": page, "reports": 1, "pictures": wantFigures, "error": nil})
	if o := dedupbench(t, "report", page, "--out", page); o.code != exitUsage || !strings.Contains(o.stderr, "--json") {
		t.Errorf("a page is no report: %+v", o)
	}
}

func TestInterruptedRunSpeaksOfCountsOnlyIfItPrintedThem(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for args, want := range map[string]bool{"demo": false, "claims --n 1000": false, "claims --n 1000 --json": true} {
		var stdout, stderr strings.Builder
		code := run(canceled, strings.Fields(args), &stdout, &stderr)
		if code != exitFailed || !strings.Contains(stderr.String(), "interrupted") || strings.Contains(stderr.String(), "counts") != want || (stdout.String() != "") != want {
			t.Errorf("%s: exit status %d, stdout %q, stderr %q", args, code, stdout.String(), stderr.String())
		}
	}
}
