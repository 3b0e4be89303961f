package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// The width of charts, in their own units; they are scaled to the width of the page. Texts are
// large enough for a phone.
const (
	chartWidth = 420
	textSize   = 14
	smallSize  = 13
	noteSize   = 10
	noteLength = 64 // characters of a line
)

// style is the style of the pictures. Colours without a meaning are those of text.
const style = `.hx{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:14px;color:#1f2328}
.hx text{fill:currentColor}.hx .s{font-size:13px;opacity:.75}.hx .n{font-size:10px;opacity:.75}.hx .b{font-weight:600}
.hx .whisker{stroke:currentColor;stroke-width:1.5;fill:none}
.hx .peer{fill:#8b949e}.hx .ours{fill:#0969da}
@media (prefers-color-scheme:dark){.hx{color:#e6edf3}.hx .ours{fill:#4493f8}.hx .peer{fill:#6e7681}}`

// A picture is an SVG under construction.
type picture struct {
	body   []byte
	height float64
	title  string
}

func (p *picture) add(format string, args ...any) { p.body = fmt.Appendf(p.body, format+"\n", args...) }

// text writes a text; anchor is start, middle or end.
func (p *picture) text(x, y float64, anchor, class, text string) {
	p.add(`<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, xy(x), xy(y), anchor, class, html.EscapeString(text))
}

// note writes small text below the picture.
func (p *picture) note(text string) {
	line := ""
	end := func() {
		p.height += noteSize + 4
		p.text(0, p.height-4, "start", "n", line)
	}
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > noteLength {
			end()
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	end()
}

// svg returns the picture. A stand-alone picture includes its style.
func (p *picture) svg(alone bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %s" class="hx" role="img" aria-label="%s">`+"\n",
		chartWidth, xy(p.height), html.EscapeString(p.title))
	if alone {
		fmt.Fprintf(&b, "<style>%s</style>\n", style)
	}
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(p.title))
	b.Write(p.body)
	b.WriteString("</svg>\n")
	return b.String()
}

// xy writes a coordinate.
func xy(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// A bar is one bar of a bar chart.
type bar struct {
	Label    string
	Value    float64
	Min, Max float64 // both 0: no spread
	Ours     bool
	Note     string // beside the value
}

// picture draws the bars from 0.
func (f *Figure) picture() *picture {
	const top, row, thick = 24, 44, 14
	all := f.bars
	p := &picture{title: f.Title, height: top + float64(len(all))*row + 4}
	most := 0.0
	for _, b := range all {
		most = max(most, b.Value, b.Max)
	}
	at := func(v float64) float64 { return chartWidth * v / max(most, 1e-12) }
	p.text(0, smallSize, "start", "s", f.unit)
	for i, b := range all {
		y := top + float64(i)*row
		class, label := "peer", ""
		if b.Ours {
			class, label = "ours", "b"
		}
		value := short3(b.Value)
		if b.Note != "" {
			value = b.Note + "  " + value
		}
		p.text(0, y+textSize, "start", label, b.Label)
		p.text(chartWidth-2, y+textSize, "end", label, value) // the outline of a glyph can be wider than its advance
		p.add(`<rect x="0" y="%s" width="%s" height="%d" rx="2" class="%s"/>`, xy(y+20), xy(max(at(b.Value), 1)), thick, class)
		if b.Max > b.Min {
			mid := y + 20 + thick/2
			p.add(`<path d="M%s %sV%sM%s %sH%sM%s %sV%s" class="whisker"/>`,
				xy(at(b.Min)), xy(mid-4), xy(mid+4), xy(at(b.Min)), xy(mid), xy(at(b.Max)), xy(at(b.Max)), xy(mid-4), xy(mid+4))
		}
	}
	return p
}

// short3 writes a number with three significant digits.
func short3(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if math.Abs(v) >= unit.size*0.9995 {
			return digits(v/unit.size) + unit.name
		}
	}
	return digits(v)
}

func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	s := strconv.FormatFloat(v, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
