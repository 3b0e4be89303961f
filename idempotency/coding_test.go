package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hapax-dev/hapax/idempotency"
)

func compress(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReplaysHaveACodingThatTheClientAccepts(t *testing.T) {
	const text = "a stored response"
	for name, c := range map[string]struct {
		coding string // of the first response
		accept []string
		status int
		same   bool // the replay has that coding
	}{
		"gzip, accepted":              {"gzip", []string{"br, gzip;q=0.5"}, 201, true},
		"gzip, by its older name":     {"x-gzip", []string{"gzip"}, 201, true},
		"gzip, in any case":           {"GZIP", []string{"Gzip"}, 201, true},
		"gzip, any":                   {"gzip", []string{"*"}, 201, true},
		"gzip, in a second header":    {"gzip", []string{"br", "gzip"}, 201, true},
		"gzip, others accepted":       {"gzip", []string{"br, identity"}, 201, false},
		"gzip, refused":               {"gzip", []string{"gzip;q=0, *"}, 201, false},
		"gzip, all refused":           {"gzip", []string{"*; q=0.0"}, 201, false},
		"gzip, empty":                 {"gzip", []string{""}, 201, false},
		"gzip, no header":             {"gzip", nil, 201, false},
		"Brotli, accepted":            {"br", []string{"br"}, 201, true},
		"Brotli, no header":           {"br", nil, 201, true},
		"Brotli, not accepted":        {"br", []string{"gzip"}, 406, false},
		"two codings, one refused":    {"gzip, br", []string{"gzip"}, 406, false},
		"identity is always accepted": {"identity", []string{"gzip"}, 201, true},
		"none":                        {"", []string{"*;q=0"}, 201, true},
	} {
		t.Run(name, func(t *testing.T) {
			sent := []byte(text)
			if strings.Contains(strings.ToLower(c.coding), "gzip") {
				sent = compress(t, text)
			}
			h := protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
				if c.coding != "" {
					w.Header().Set("Content-Encoding", c.coding)
				}
				w.Header().Set("ETag", `"1"`)
				w.WriteHeader(http.StatusCreated)
				w.Write(sent)
			})
			want(t, do(h, post("k", "")), 201, false)
			r := post("k", "")
			r.Header["Accept-Encoding"] = c.accept
			w := do(h, r)
			want(t, w, c.status, true)
			switch body := w.Body.String(); {
			case c.status != 201:
			case c.same && (body != string(sent) || w.Header().Get("Content-Encoding") != c.coding || w.Header().Get("ETag") == ""):
				t.Errorf("%q %v", body, w.Header())
			case !c.same && (body != text || w.Header().Get("Content-Encoding") != "" || w.Header().Get("ETag") != ""):
				t.Errorf("%q %v", body, w.Header())
			}
		})
	}
}

// http.Transport accepts gzip by itself; a client without it gets the text.
func TestAReplayOverHTTPIsDecoded(t *testing.T) {
	server := httptest.NewServer(protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		body := compress(t, "text")
		w.Write(body)
	}))
	defer server.Close()
	for _, plain := range []bool{false, true} {
		client := &http.Client{Transport: &idempotency.Transport{Base: &http.Transport{DisableCompression: plain, DisableKeepAlives: true}}}
		r, err := http.NewRequestWithContext(idempotency.WithKey(t.Context(), "k"), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "text" {
			t.Errorf("without compression %v: %q, %v", plain, body, err)
		}
	}
}
