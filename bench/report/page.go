package report

import (
	"html/template"
	"io"
)

// Page writes a page with all figures.
func Page(w io.Writer, runs []Run) error {
	p := struct {
		Style template.CSS
		Figs  []pageFigure
		Runs  []Run
	}{Style: template.CSS(style), Runs: runs}
	for _, f := range Figures(runs) {
		// The picture escapes its texts itself.
		p.Figs = append(p.Figs, pageFigure{f, template.HTML(f.picture().svg(false))})
	}
	return page.Execute(w, p)
}

type pageFigure struct {
	Figure  Figure
	Picture template.HTML
}

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
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
{{.Style}}
</style>
</head>
<body>
<h1>Hapax: measurements</h1>
<p class="soft">Each picture says which command measured it, at which commit and on which machine. Compare figures within one run: rates of two runs differ with what else the machine does.</p>
<div class="grid">
{{range .Figs}}<figure id="{{.Figure.Name}}">
<h2>{{.Figure.Title}}</h2>
{{.Picture}}
<figcaption>
<p>{{.Figure.Text}}</p>
{{range .Figure.Sources}}<p class="soft"><code>{{.Command}}</code><br>{{.Where}}</p>
{{end}}</figcaption>
</figure>
{{end}}</div>
<section>
<h2>All runs</h2>
{{range .Runs}}<p class="soft"><code>{{.About.Command}}</code><br>{{.About.Where}}</p>
{{end}}</section>
</body>
</html>
`))
