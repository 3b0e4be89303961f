package report

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"strings"
)

// Page writes a page with all figures, and the tables of comparisons.
func Page(w io.Writer, runs []Run) error {
	p := struct {
		Style  template.CSS
		Figs   []pageFigure
		Tables []pageTable
		Runs   []Run
	}{Style: template.CSS(style), Runs: runs}
	for _, f := range Figures(runs) {
		// The picture escapes its texts itself.
		p.Figs = append(p.Figs, pageFigure{f, template.HTML(f.picture.svg(false))})
	}
	for i := range runs {
		if c := runs[i].Comparison; c != nil && len(c.Rows) > 1 {
			p.Tables = append(p.Tables, tableOf(c))
		}
	}
	return page.Execute(w, p)
}

type pageFigure struct {
	Figure
	Picture template.HTML
}

type pageTable struct {
	About  About
	Head   []string
	Rows   [][]string
	Ratios []Ratio
	Peers  []Row // one of each name
}

func tableOf(c *Comparison) pageTable {
	t := pageTable{About: c.About, Ratios: c.Ratios, Head: []string{
		"contender", "work", "rate/s", "least to most", "CPU µs for each", "bytes written for each", "in the end", "process killed", "server killed, too", "setting",
	}}
	seen := map[string]bool{}
	for _, r := range c.Rows {
		n := float64(max(cmp.Or(r.Records, c.Records), 1))
		t.Rows = append(t.Rows, []string{
			r.Name, r.Work, short3(r.PerS.Median), short3(r.PerS.Min) + " to " + short3(r.PerS.Max), digits(r.CPUSeconds / n * 1e6),
			digits(float64(r.WrittenBytes) / n), orRight(r.Wrong), orDash(r.Killed), orDash(r.KilledServer), orDash(r.Setting),
		})
		if !seen[r.Name] {
			seen[r.Name] = true
			t.Peers = append(t.Peers, r)
		}
	}
	return t
}

func orRight(wrong string) string {
	if wrong == "" {
		return "right"
	}
	return "wrong: " + wrong
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"ratio": func(v float64) string { return fmt.Sprintf("%.2f", v) },
	"lower": strings.ToLower,
}).Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Hapax: measurements</title>
<style>
:root{color-scheme:light dark;--back:#ffffff;--text:#1f2328;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--soft:#9198a1;--line:#3d444d;--card:#151b23}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:1rem;background:var(--back);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.15rem;margin:0 0 .3rem}
p{margin:.3rem 0}.soft{color:var(--soft);font-size:.85rem}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}
figure,section{margin:0;padding:1rem;border:1px solid var(--line);border-radius:8px;background:var(--card);min-width:0}
section{margin-top:1rem}
figure svg{width:100%;max-width:560px;height:auto;display:block;margin:.6rem 0}
code{font:.8rem ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{white-space:nowrap}
{{.Style}}
</style>
</head>
<body>
<h1>Hapax: measurements</h1>
<p class="soft">Each picture says which command measured it, at which commit and on which machine. Compare figures within one run: rates of two runs differ with what else the machine does.</p>
<div class="grid">
{{range .Figs}}<figure id="{{.Name}}">
<h2>{{.Title}}</h2>
{{.Picture}}
<figcaption>
<p>{{.Text}}</p>
{{range .Sources}}<p class="soft"><code>{{.Command}}</code><br>{{.Where}}</p>
{{end}}</figcaption>
</figure>
{{end}}</div>
{{range .Tables}}<section>
<h2>{{.About.Command}}</h2>
<div class="scroll"><table>
<thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}
<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}
</tbody></table></div>
{{if .Ratios}}<h2>Ratios</h2>
<div class="scroll"><table><thead><tr><th>rate of</th><th>over</th><th>work</th><th>ratio</th></tr></thead>
<tbody>{{range .Ratios}}
<tr><td>{{.Of}}</td><td>{{.Over}}</td><td>{{.Work}}</td><td>{{ratio .Ratio}}</td></tr>{{end}}
</tbody></table></div>
{{end}}<h2>How each is set up</h2>
<div class="scroll"><table><thead><tr><th>contender</th><th>durable when a batch is done</th><th>settings</th></tr></thead>
<tbody>{{range .Peers}}
<tr><td>{{.Name}}</td><td>{{.Durability}}</td><td>{{.Settings}}</td></tr>{{end}}
</tbody></table></div>
</section>
{{end}}<section>
<h2>All runs</h2>
{{range .Runs}}<p class="soft"><code>{{.About.Command}}</code><br>{{.About.Where}}</p>
{{end}}</section>
</body>
</html>
`))
