package report

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// browserIn names a browser, which must exist then. Without it the tests take one that they find, or
// are skipped.
const browserIn = "HAPAX_BROWSER"

func findBrowser(t *testing.T) string {
	if name := os.Getenv(browserIn); name != "" {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%s: %v", browserIn, err)
		}
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no chromium, chromium-browser or google-chrome in PATH: install the Debian package chromium")
	return ""
}

// shown is what a browser says about a page of 390 pixels, the width of a phone.
type shown struct {
	ScrollWidth, ClientWidth float64
	Resources                []string // that were loaded besides the page
	Figures, Drawn           int      // Drawn have a picture with shapes
	Outside                  []string // texts that are not inside their picture
	Over                     []string // texts that are over another one
	SmallestText             float64  // in pixels
	// Back is the luminance of the page, from 0 to 255; Least and Most are those of the texts.
	Back, Least, Most float64
}

// frame measures page.html.
const frame = `<!DOCTYPE html><body style="margin:0"><pre id="shown"></pre>
<script>
const light = c => { const [r, g, b] = c.match(/[\d.]+/g).map(Number); return .2126*r + .7152*g + .0722*b }
const measure = page => {
	const d = page.contentDocument, css = e => page.contentWindow.getComputedStyle(e), o = {Outside: [], Over: [], Drawn: 0, SmallestText: 1e9, Least: 255, Most: 0}
	o.ScrollWidth = d.documentElement.scrollWidth
	o.ClientWidth = d.documentElement.clientWidth
	o.Resources = page.contentWindow.performance.getEntriesByType('resource').map(e => e.name)
	o.Figures = d.querySelectorAll('figure').length
	o.Back = light(css(d.body).backgroundColor)
	for (const s of d.querySelectorAll('svg')) {
		const box = s.getBoundingClientRect(), scale = box.width / s.viewBox.baseVal.width
		if ([...s.querySelectorAll('rect,path')].some(e => e.getBoundingClientRect().width > 0)) o.Drawn++
		let before = []
		for (const t of s.querySelectorAll('text')) {
			const r = t.getBoundingClientRect(), c = light(css(t).fill)
			if (r.left < box.left-.5 || r.right > box.right+.5 || r.top < box.top-.5 || r.bottom > box.bottom+.5) o.Outside.push(s.getAttribute('aria-label') + ': ' + t.textContent)
			if (before.some(b => b.left < r.right && r.left < b.right && b.top+2 < r.bottom && r.top+2 < b.bottom)) o.Over.push(s.getAttribute('aria-label') + ': ' + t.textContent)
			before.push(r)
			o.SmallestText = Math.min(o.SmallestText, parseFloat(css(t).fontSize) * scale)
			o.Least = Math.min(o.Least, c); o.Most = Math.max(o.Most, c)
		}
	}
	shown.textContent = JSON.stringify(o)
}
</script>
<iframe onload="measure(this)" src="page.html" width="390" height="844" style="border:0"></iframe>`

// show opens a page in a browser of that colour scheme.
func show(t *testing.T, browser, page, scheme string) (s shown) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"page.html": page, "frame.html": frame} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // a browser can hang
	defer cancel()
	preferred := map[string]string{"dark": "0", "light": "1"}[scheme]
	cmd := exec.CommandContext(ctx, browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run", "--hide-scrollbars",
		"--allow-file-access-from-files", "--blink-settings=preferredColorScheme="+preferred, "--user-data-dir="+filepath.Join(dir, "profile"),
		"--virtual-time-budget=3000", "--dump-dom", "file://"+filepath.Join(dir, "frame.html"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	_, rest, _ := strings.Cut(string(dom), `<pre id="shown">`)
	result, _, found := strings.Cut(rest, "</pre>")
	if os.Getenv(browserIn) == "" && !found {
		t.Skipf("%s shows no page of %s: %v", browser, dir, err)
	}
	if err != nil || !found || json.Unmarshal([]byte(html.UnescapeString(result)), &s) != nil {
		t.Fatalf("%s: %v\n%s\n%s", browser, err, dom, stderr.Bytes())
	}
	return s
}

func TestPageIsReadableOnAPhone(t *testing.T) {
	browser := findBrowser(t)
	var b bytes.Buffer
	runs := read(t, everything(t))
	if err := Page(&b, runs); err != nil {
		t.Fatal(err)
	}
	want := len(Figures(runs))
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			s := show(t, browser, b.String(), scheme)
			if s.ClientWidth != 390 || s.ScrollWidth > s.ClientWidth {
				t.Errorf("the page is %v pixels wide, of %v", s.ScrollWidth, s.ClientWidth)
			}
			if len(s.Resources) > 0 {
				t.Errorf("the page loads %q", s.Resources)
			}
			if s.Figures != want || s.Drawn != want {
				t.Errorf("%d figures, %d drawn, want %d", s.Figures, s.Drawn, want)
			}
			if len(s.Outside)+len(s.Over) > 0 {
				t.Errorf("texts outside of their pictures: %q, over others: %q", s.Outside, s.Over)
			}
			if s.SmallestText < 10 {
				t.Errorf("there is a text of %.1f pixels", s.SmallestText)
			}
			if scheme == "light" && (s.Back < 200 || s.Most > 100) || scheme == "dark" && (s.Back > 50 || s.Least < 150) {
				t.Errorf("%s: the page has the luminance %.0f, its texts %.0f to %.0f", scheme, s.Back, s.Least, s.Most)
			}
		})
	}
}

func TestTextsAreInsideOfTheirFiles(t *testing.T) {
	browser := findBrowser(t)
	page := "<!DOCTYPE html>"
	for _, f := range Figures(read(t, everything(t))) {
		page += "<figure>" + f.SVG() + "</figure>"
	}
	if s := show(t, browser, page, "light"); len(s.Outside)+len(s.Over) > 0 || s.Drawn == 0 || s.Drawn != s.Figures {
		t.Errorf("%d figures, %d drawn; texts outside of their pictures: %q, over others: %q", s.Figures, s.Drawn, s.Outside, s.Over)
	}
}
