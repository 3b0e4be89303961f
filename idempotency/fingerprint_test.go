package idempotency_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/idempotency"
)

// form returns a request with a form of one field and one file.
func form(t *testing.T, boundary, amount, file string) *http.Request {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	err := w.SetBoundary(boundary)
	if err == nil {
		err = w.WriteField("amount", amount)
	}
	part, err2 := w.CreateFormFile("receipt", "receipt.pdf")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	io.WriteString(part, file)
	w.Close()
	r := httptest.NewRequest(http.MethodPost, "/payments", &body)
	r.Header.Set("Content-Type", w.FormDataContentType())
	r.Header.Set(idempotency.KeyHeader, "k")
	return r
}

func TestAFormThatIsEncodedAgainIsTheSameRequest(t *testing.T) {
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	want(t, do(h, form(t, "one", "5", "scan")), 201, false)
	want(t, do(h, form(t, "another", "5", "scan")), 201, true)
	want(t, do(h, form(t, "one", "50", "scan")), 422, false)
	want(t, do(h, form(t, "one", "5", "scam")), 422, false)
	want(t, do(h, form(t, "one", "5", "scan\r\n--one--x")), 422, false)
	named := form(t, "one", "5", "scan")
	body, err := io.ReadAll(named.Body)
	if err != nil {
		t.Fatal(err)
	}
	named.Body = io.NopCloser(bytes.NewReader(bytes.Replace(body, []byte("receipt.pdf"), []byte("receipt.png"), 1)))
	want(t, do(h, named), 422, false)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// A body that is not what its type says is compared byte by byte.
func TestABrokenFormIsComparedWhole(t *testing.T) {
	handler, _ := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	ask := func(body string) *http.Request {
		r := post("k", body)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		return r
	}
	want(t, do(h, ask("--x\r\nA: b\r\n\r\ncut of")), 201, false)
	want(t, do(h, ask("--x\r\nA: b\r\n\r\ncut of")), 201, true)
	want(t, do(h, ask("--x\r\nA: b\r\n\r\ncut oF")), 422, false)
}

func TestFingerprintReplacesTheComparisonOfTheBody(t *testing.T) {
	handler, _ := counting()
	h := protect(t, inMemory(t), idempotency.Options{Fingerprint: func(r *http.Request, body []byte) []byte {
		amount, _, _ := bytes.Cut(body, []byte(" at "))
		return append(amount, r.Header.Get("Currency")...)
	}}, handler)
	want(t, do(h, post("k", "5 at noon")), 201, false)
	want(t, do(h, post("k", "5 at midnight")), 201, true)
	want(t, do(h, post("k", "6 at noon")), 422, false)
	other := post("k", "5 at noon")
	other.Header.Set("Currency", "EUR")
	want(t, do(h, other), 422, false)
	other = post("k", "5 at noon")
	other.Method = http.MethodPatch
	want(t, do(h, other), 422, false)
}

func TestAHostDoesNotGetTheResponseOfAnother(t *testing.T) {
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	to := func(host string) *httptest.ResponseRecorder {
		r := post("k", "")
		r.Host = host
		return do(h, r)
	}
	want(t, to("a.example.com"), 201, false)
	want(t, to("b.example.com"), 422, false)
	want(t, to("A.Example.com:8443"), 201, true)
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// The server removes the temporary files of its own request only, and the handler gets a copy.
func TestTemporaryFilesOfAFormAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	files := func() int {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	for name, end := range map[string]func(){"returns": func() {}, "panics": func() { panic(http.ErrAbortHandler) }} {
		for _, keyless := range []bool{false, true} {
			ran := false
			h := protect(t, inMemory(t), idempotency.Options{Optional: true}, func(_ http.ResponseWriter, r *http.Request) {
				ran = true
				if err := r.ParseMultipartForm(1); err != nil {
					t.Error(err)
				}
				if files() == 0 {
					t.Error("the form has no temporary file")
				}
				end()
			})
			r := form(t, "one", "5", strings.Repeat("x", 1000))
			if keyless {
				r.Header.Del(idempotency.KeyHeader)
			}
			func() {
				defer func() { _ = recover() }()
				do(h, r)
			}()
			if n := files(); n > 0 || !ran {
				t.Errorf("the handler %s, key %v: %d temporary files remain", name, !keyless, n)
			}
		}
	}
}
