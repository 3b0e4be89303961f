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

// style is the style of the pictures. Colours are those of text unless they have a meaning.
const style = `.hx{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:14px;color:#1f2328}
.hx text{fill:currentColor}.hx .s{font-size:13px;opacity:.75}.hx .n{font-size:10px;opacity:.75}.hx .b{font-weight:600}
.hx .axis{stroke:currentColor;opacity:.25;stroke-width:1}.hx .whisker{stroke:currentColor;stroke-width:1.5;fill:none}
.hx .peer{fill:#8b949e}.hx .ours{fill:#0969da}.hx .line{fill:none;stroke-width:1.6}.hx .main{stroke-width:3}
.hx .c0{stroke:#0969da}.hx .c1{stroke:#bc4c00}.hx .c2{stroke:#1a7f37}.hx .c3{stroke:#8250df}.hx .c4{stroke:#bf3989}.hx .c5{stroke:#7d8590}.hx .c6{stroke:#9a6700}.hx .c7{stroke:#57606a}
@media (prefers-color-scheme:dark){.hx{color:#e6edf3}.hx .ours{fill:#4493f8}.hx .peer{fill:#6e7681}
.hx .c0{stroke:#4493f8}.hx .c1{stroke:#f0883e}.hx .c2{stroke:#3fb950}.hx .c3{stroke:#ab7df8}.hx .c4{stroke:#f778ba}.hx .c5{stroke:#9198a1}.hx .c6{stroke:#d29922}.hx .c7{stroke:#b1bac4}}`

const colours = 8

// A picture is an SVG under construction.
type picture struct {
	body   []byte
	height float64
	title  string
}

func (p *picture) add(format string, args ...any) { p.body = fmt.Appendf(p.body, format+"\n", args...) }

// text writes a text; anchor is start, middle or end.
func (p *picture) text(x, y float64, anchor, class, text string) {
	p.add(`<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, f(x), f(y), anchor, class, html.EscapeString(text))
}

func (p *picture) line(x1, y1, x2, y2 float64, class string) {
	p.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, f(x1), f(y1), f(x2), f(y2), class)
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
		chartWidth, f(p.height), html.EscapeString(p.title))
	if alone {
		fmt.Fprintf(&b, "<style>%s</style>\n", style)
	}
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(p.title))
	b.Write(p.body)
	b.WriteString("</svg>\n")
	return b.String()
}

// f writes a coordinate.
func f(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// A bar is one of a chart of bars.
type bar struct {
	Label    string
	Value    float64
	Min, Max float64 // both 0: no spread
	Ours     bool
	Note     string // beside the value
}

// bars draws bars from 0.
func bars(title, unit string, all []bar) *picture {
	const top, row, thick = 24, 44, 14
	p := &picture{title: title, height: top + float64(len(all))*row + 4}
	most := 0.0
	for _, b := range all {
		most = max(most, b.Value, b.Max)
	}
	at := func(v float64) float64 { return chartWidth * v / max(most, 1e-12) }
	p.text(0, smallSize, "start", "s", unit)
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
		p.add(`<rect x="0" y="%s" width="%s" height="%d" rx="2" class="%s"/>`, f(y+20), f(max(at(b.Value), 1)), thick, class)
		if b.Max > b.Min {
			mid := y + 20 + thick/2
			p.add(`<path d="M%s %sV%sM%s %sH%sM%s %sV%s" class="whisker"/>`,
				f(at(b.Min)), f(mid-4), f(mid+4), f(at(b.Min)), f(mid), f(at(b.Max)), f(at(b.Max)), f(mid-4), f(mid+4))
		}
	}
	return p
}

// A point is one of a curve.
type point struct{ X, Y float64 }

// A curve is one of a chart of lines.
type curve struct {
	Label  string
	Points []point
	Ours   bool
	Dots   bool // few points, each of which counts
}

// lines draws curves over an axis from 0 to the largest value, both ways.
func lines(title, xUnit, yUnit string, all []curve) *picture {
	const left, top, width, height = 50, 26, chartWidth - 50 - 22, 220
	p := &picture{title: title}
	var mostX, mostY float64
	for _, c := range all {
		for _, pt := range c.Points {
			mostX, mostY = max(mostX, pt.X), max(mostY, pt.Y)
		}
	}
	stepX, stepY := tick(mostX), tick(mostY)
	mostX, mostY = max(mostX, stepX), math.Ceil(mostY/stepY-1e-9)*stepY
	x := func(v float64) float64 { return left + width*v/mostX }
	y := func(v float64) float64 { return top + height - height*v/mostY }
	p.text(0, smallSize, "start", "s", yUnit)
	for v := 0.0; v <= mostY*1.0001; v += stepY {
		p.line(left, y(v), left+width, y(v), "axis")
		p.text(left-6, y(v)+4, "end", "s", short3(v))
	}
	for v := 0.0; v <= mostX*1.0001; v += stepX {
		p.line(x(v), top+height, x(v), top+height+4, "axis")
		p.text(x(v), top+height+18, "middle", "s", short3(v))
	}
	p.text(left+width, top+height+36, "end", "s", xUnit)
	for i, c := range all {
		p.curve(&c, i%colours, x, y)
	}
	p.height = p.legend(all, top+height+44)
	return p
}

func (p *picture) curve(c *curve, colour int, x, y func(float64) float64) {
	var path strings.Builder
	for i, pt := range c.Points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		path.WriteString(command + f(x(pt.X)) + " " + f(y(pt.Y)))
	}
	class := fmt.Sprintf("line c%d", colour)
	if c.Ours {
		class += " main"
	}
	p.add(`<path d="%s" class="%s"/>`, path.String(), class)
	if c.Dots || len(c.Points) == 1 {
		for _, pt := range c.Points {
			p.add(`<circle cx="%s" cy="%s" r="3.5" class="%s"/>`, f(x(pt.X)), f(y(pt.Y)), class)
		}
	}
}

// legend names the curves, two in a row, and returns where it ends.
func (p *picture) legend(all []curve, y float64) float64 {
	if len(all) < 2 {
		return y
	}
	for i, c := range all {
		x := float64(i%2) * chartWidth / 2
		if i%2 == 0 {
			y += 22
		}
		class := fmt.Sprintf("line c%d", i%colours)
		label := ""
		if c.Ours {
			class, label = class+" main", "b"
		}
		p.line(x, y-5, x+22, y-5, class)
		p.text(x+28, y, "start", label, c.Label)
	}
	return y + 8
}

// tick is the distance of marks on an axis: 1, 2 or 5 times a power of ten, four to eight of them.
func tick(most float64) float64 {
	if most <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, times := range []float64{1, 2, 5} {
		if most/(step*times) <= 6 {
			return step * times
		}
	}
	return step * 10
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
