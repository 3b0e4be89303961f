package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func about(kind, command string) About {
	return About{Kind: kind, Command: command, Commit: "0123abc", Machine: "2 cores", Go: "go1", Time: time.Unix(0, 0)}
}

func line(t *testing.T, v any, a About) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	m["about"] = a
	if b, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

const evil = `<script>alert("x")</script>&`

// everything is the output of one command of each kind.
func everything(t *testing.T) string {
	samples := []Sample{{Stored: 100, PerS: 10, Disk: 4000, Resident: 9000}, {Stored: 150, PerS: 20, Disk: 5000, Resident: 9000}}
	rows := []Row{
		{Name: "hapax", Work: "shared", PerS: Spread{30, 20, 40}, Durability: "synced", Killed: "right"},
		{Name: "redis" + evil, Work: "shared", PerS: Spread{40, 40, 40}, Durability: "nothing", Killed: "WRONG: 3 balances"},
		{Name: "hapax", Work: "claims", PerS: Spread{50, 50, 50}, Durability: "synced"},
	}
	claims := []Row{
		{Name: "hapax", PerS: Spread{30, 20, 40}, Durability: "synced", Samples: samples},
		{Name: "bbolt", PerS: Spread{3, 2, 4}, Durability: "synced", Samples: samples},
	}
	sizes := []Row{
		{Name: "pebble-get-set", Work: "1000000 ids", Records: 1e6, PerS: Spread{120e3, 120e3, 120e3}, Durability: "synced"},
		{Name: "hapax", Work: "1000000 ids", Records: 1e6, PerS: Spread{700e3, 700e3, 700e3}, Durability: "synced"},
		{Name: "hapax", Work: "11000000 ids", Records: 11e6, PerS: Spread{500e3, 500e3, 500e3}, Durability: "synced"},
	}
	return "noise\n" +
		line(t, Comparison{Records: 10, Rounds: 3, Rows: rows, Ratios: []Ratio{{Of: "hapax", Over: "redis", Work: "shared", Ratio: 0.75}}}, about("peers consumers", "peers consumers "+evil)) +
		line(t, Comparison{Records: 10, Rounds: 3, Rows: claims}, about("peers claims", "peers claims")) +
		line(t, Comparison{Records: 10, Rounds: 1, Rows: sizes}, about("peers claims", "peers claims --ids 1000000,11000000")) +
		line(t, map[string]any{"p50_us": 10, "p99_us": 100, "p999_us": 1000, "claimed": 1000, "bytes_per_claim": 36.5, "heap_bytes": 4000, "rss_bytes": 9000, "cpu_us_per_claim": 1.3},
			about("claims", "dedupbench claims --batch 1 --store=bolt")) +
		line(t, map[string]any{"p50_us": 999, "p99_us": 12_300, "p999_us": 1_230_000, "claimed": 123e6, "bytes_per_claim": 36.5},
			about("claims", "dedupbench claims --n 123000000 --dup 0 --batch 10000 --goroutines 64 --in-flight 16 --weeks 4 --json")) +
		line(t, map[string]any{"acked": 1e6, "first_verdict_ms": 300}, about("reopen", "dedupbench reopen --n 1000000")) +
		line(t, map[string]any{"acked": 5e6, "first_verdict_ms": 900}, about("reopen", "dedupbench reopen --n 5000000"))
}

func read(t *testing.T, text string) []Run {
	t.Helper()
	runs, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

func TestThereIsAFigureForEverythingThatHasData(t *testing.T) {
	var names []string
	for _, f := range Figures(read(t, everything(t))) {
		names = append(names, f.Name)
		if len(f.Sources) == 0 || f.Title == "" {
			t.Errorf("%s has no source or no title", f.Name)
		}
	}
	want := []string{"peers-consumer-shared", "peers-consumer-claims", "peers-claims", "peers-claims-1000000-ids", "peers-claims-11000000-ids", "rate-over-claims",
		"latency", "recovery", "disk-per-claim", "memory-per-claim"}
	if !slices.Equal(names, want) {
		t.Errorf("figures %q, want %q", names, want)
	}
}

func TestThereIsNoFigureWithoutData(t *testing.T) {
	runs := read(t, line(t, map[string]any{"kills": 3, "p50_us": nil}, about("claims", "dedupbench claims")))
	if figures := Figures(runs); len(figures) > 0 {
		t.Errorf("%q of nothing", figures[0].Name)
	}
	if err := Page(io.Discard, runs); err != nil {
		t.Error(err)
	}
}

func TestPicturesAreXMLAndEscaped(t *testing.T) {
	for _, f := range Figures(read(t, everything(t))) {
		svg := f.SVG()
		elements := 0
		for d := xml.NewDecoder(strings.NewReader(svg)); ; elements++ {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", f.Name, err, svg)
			}
		}
		if elements < 10 || strings.Contains(svg, "<script") || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%s:\n%s", f.Name, svg)
		}
		if !strings.Contains(svg, "prefers-color-scheme:dark") {
			t.Errorf("%s has one colour scheme", f.Name)
		}
		if svg != f.SVG() || !strings.Contains(svg, "1970-01-01 00:00 UTC, commit 0123abc, 2 cores, go1") || !strings.Contains(svg, ">"+strings.Fields(f.Sources[0].Command)[0]) {
			t.Errorf("%s does not say where it is from:\n%s", f.Name, svg)
		}
	}
}

func TestPageStandsAlone(t *testing.T) {
	var b bytes.Buffer
	if err := Page(&b, read(t, everything(t))); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, foreign := range []string{"<script", "<link", "src=", "@import", "url("} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page has %q", foreign)
		}
	}
	// A namespace is a name, and not fetched.
	if rest := strings.ReplaceAll(page, `xmlns="http://www.w3.org/2000/svg"`, ""); strings.Contains(rest, "http:") || strings.Contains(rest, "https:") {
		t.Error("the page names an address")
	}
	for _, wanted := range []string{`name="viewport"`, "prefers-color-scheme:dark", "dedupbench reopen --n 5000000", "commit 0123abc", "2 cores", "redis&lt;script&gt;"} {
		if !strings.Contains(page, wanted) {
			t.Errorf("the page lacks %q", wanted)
		}
	}
	if figures, pictures := strings.Count(page, "<figure"), strings.Count(page, "<svg"); figures != 10 || pictures != 10 {
		t.Errorf("%d figures with %d pictures", figures, pictures)
	}
}

func TestInputThatIsNoReport(t *testing.T) {
	for _, text := range []string{"", "a table\n", `{"claims_per_s":3}` + "\n"} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, ErrNoReport) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Read(strings.NewReader("{\n")); err == nil {
		t.Error("half an object is read")
	}
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.5: "0.5", 1: "1", 2.345: "2.35", 10: "10", 99.94: "99.9", 99.96: "100", 100: "100", 999.6: "1 k", 1500: "1.5 k", 84_300: "84.3 k", 2e6: "2 M", 3.2e9: "3.2 G",
	} {
		if got := short3(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

func TestAboutNamesCommandAndMachine(t *testing.T) {
	a := NewAbout("claims", "dedupbench", []string{"claims", "--dir", "a b"})
	if !strings.HasSuffix(a.Command, `claims --dir "a b"`) || !strings.Contains(a.Machine, "cores") || a.Kind != "claims" || a.Time.IsZero() {
		t.Errorf("%+v", a)
	}
	run := Run{About: About{Command: "dedupbench claims --store=bolt --batch 7 --json"}}
	if got := fmt.Sprint(run.flag("store", "x"), run.flag("batch", "x"), run.flag("goroutines", "1")); got != "bolt71" {
		t.Error(got)
	}
}
