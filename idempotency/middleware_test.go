package idempotency_test

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/limits"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
)

func TestAnswerBeforeTheHandler(t *testing.T) {
	long := strings.Repeat("k", idempotency.MaxKeyBytes)
	for name, c := range map[string]struct {
		keys   []string
		status int
	}{
		"missing":           {nil, 400},
		"empty":             {[]string{""}, 400},
		"empty string":      {[]string{`""`}, 400},
		"string":            {[]string{`"k"`}, 201},
		"token":             {[]string{"k"}, 201},
		"spaces around":     {[]string{` "k" `}, 201},
		"escapes":           {[]string{`"a\"b\\c"`}, 201},
		"open":              {[]string{`"k`}, 400},
		"more after it":     {[]string{`"k" x`}, 400},
		"parameters":        {[]string{`"k";a=1`}, 400},
		"other escape":      {[]string{`"\k"`}, 400},
		"ends in escape":    {[]string{`"k\`}, 400},
		"list":              {[]string{"a,b"}, 400},
		"two":               {[]string{"a", "a"}, 400},
		"control character": {[]string{"\"a\tb\""}, 400},
		"beyond ASCII":      {[]string{"\"\u00e9\""}, 400},
		"longest":           {[]string{`"` + long + `"`}, 201},
		"longest token":     {[]string{long}, 201},
		"too long":          {[]string{`"` + long + `k"`}, 400},
		"too long a token":  {[]string{long + "k"}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			handler, runs := counting()
			h := protect(t, inMemory(t), idempotency.Options{}, handler)
			r := post("", "body")
			r.Header[idempotency.KeyHeader] = c.keys
			w := do(h, r)
			want(t, w, c.status, false)
			if ran := runs.Load() == 1; ran != (c.status == 201) {
				t.Errorf("status %d, and the handler ran: %v", w.Code, ran)
			}
			if c.status == 400 && w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("a refusal of type %q", w.Header().Get("Content-Type"))
			}
		})
	}
}

func TestTokenAndStringAreOneKey(t *testing.T) {
	handler, _ := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	want(t, do(h, post(`"k"`, "")), 201, false)
	want(t, do(h, post("k", "")), 201, true)
}

func TestOtherMethodsAndOptionalKeysReachTheHandler(t *testing.T) {
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{Optional: true}, handler)
	get := post("k", "")
	get.Method = http.MethodGet
	for i, r := range []*http.Request{get, get, post("", ""), post("", "")} {
		want(t, do(h, r), 201, false)
		if runs.Load() != int64(i+1) {
			t.Fatalf("request %d: %d runs", i, runs.Load())
		}
	}
	want(t, do(h, post(`"`, "")), 400, false) // malformed is not missing
}

func TestOtherPayloadUnderAKeyIsRejected(t *testing.T) {
	for name, secret := range map[string][]byte{"by tenant and key": nil, "secret": []byte("secret")} {
		t.Run(name, func(t *testing.T) {
			handler, runs := counting()
			h := protect(t, inMemory(t), idempotency.Options{Secret: secret}, handler)
			want(t, do(h, post("k", "body")), 201, false)
			for what, change := range map[string]func(*http.Request){
				"method": func(r *http.Request) { r.Method = http.MethodPatch },
				"path":   func(r *http.Request) { r.URL.Path = "/payment" },
				"query":  func(r *http.Request) { r.URL.RawQuery = "a=2" },
				"body":   func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("bodY")) },
				"border": func(r *http.Request) {
					r.URL.RawQuery = "a=1b"
					r.Body = io.NopCloser(strings.NewReader("ody"))
				},
			} {
				r := post("k", "body")
				change(r)
				if w := do(h, r); w.Code != 422 {
					t.Errorf("another %s: status %d", what, w.Code)
				}
			}
			want(t, do(h, post("k", "body")), 201, true)
			if runs.Load() != 1 {
				t.Errorf("%d runs", runs.Load())
			}
		})
	}
}

func TestReplayIsIdentical(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			h := protect(t, openEngine(t, open(t), nil), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				w.Header().Set("Location", "/payments/17")
				w.Header()["X-Latin"] = []string{"caf\xe9", "second"}
				w.Header()["X-lower"] = []string{"as it is"}
				w.Header().Set("Trailer", "X-Sum")
				w.WriteHeader(http.StatusAccepted)
				w.Header().Set("X-Late", "not sent")
				w.Write([]byte("\x00\xff "))
				w.Write(body)
				w.WriteHeader(http.StatusOK)
				w.Header().Set("X-Sum", "42")
				w.Header().Set(http.TrailerPrefix+"X-More", "43")
			})
			server := httptest.NewServer(h)
			defer server.Close()
			client := &http.Client{Transport: &idempotency.Transport{}}
			ctx := idempotency.WithKey(t.Context(), "k")
			var first *http.Response
			var firstBody string
			for i := range 3 {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(strings.Repeat("b", 5000)))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				resp.Header.Del("Date") // the server's own
				if i == 0 {
					first, firstBody = resp, string(b)
					if resp.StatusCode != http.StatusAccepted || len(b) != 5003 || resp.Header.Get("X-Late") != "" || resp.Trailer.Get("X-Sum") != "42" ||
						resp.Trailer.Get("X-More") != "43" || !reflect.DeepEqual(resp.Header["X-Latin"], []string{"caf\xe9", "second"}) {
						t.Fatalf("first: %v %v %v", resp.Status, resp.Header, resp.Trailer)
					}
					continue
				}
				if resp.Header.Get(idempotency.ReplayedHeader) != "true" {
					t.Error("a replay is not marked")
				}
				resp.Header.Del(idempotency.ReplayedHeader)
				if resp.StatusCode != first.StatusCode || string(b) != firstBody || !reflect.DeepEqual(resp.Header, first.Header) ||
					!reflect.DeepEqual(resp.Trailer, first.Trailer) {
					t.Errorf("replay: %v %v %v\nfirst: %v %v %v", resp.Status, resp.Header, resp.Trailer, first.Status, first.Header, first.Trailer)
				}
			}
		})
	}
}

func TestTenantsNeverMatch(t *testing.T) {
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{Tenant: func(r *http.Request) (string, error) {
		switch tenant := r.Header.Get("Tenant"); tenant {
		case "down":
			return "", errors.New("secret cause")
		case "stranger":
			return "", &idempotency.StatusError{Status: http.StatusUnauthorized, Err: errors.New("secret cause")}
		case "odd":
			return "", &idempotency.StatusError{Status: http.StatusOK, Err: errors.New("secret cause")}
		default:
			return tenant, nil
		}
	}}, handler)
	as := func(tenant, key string) *httptest.ResponseRecorder {
		r := post(key, "")
		r.Header.Set("Tenant", tenant)
		return do(h, r)
	}
	for i, c := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"abc", "abc"}, {"a", "c"}} {
		want(t, as(c[0], c[1]), 201, false)
		want(t, as(c[0], c[1]), 201, true)
		if runs.Load() != int64(i+1) {
			t.Fatalf("%q: %d runs", c, runs.Load())
		}
	}
	for tenant, status := range map[string]int{"down": 500, "stranger": 401, "odd": 500, strings.Repeat("x", 256): 500} {
		w := as(tenant, "k")
		want(t, w, status, false)
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("the client sees the cause: %s", w.Body)
		}
	}
	if runs.Load() != 5 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestBodyAboveTheLimitIsRejected(t *testing.T) {
	runs := 0
	h := protect(t, inMemory(t), idempotency.Options{MaxRequestBytes: 4}, func(_ http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != "four" {
			t.Errorf("the handler reads %q, %v", b, err)
		}
		runs++
	})
	want(t, do(h, post("k", "fives")), 413, false)
	want(t, do(h, post("k", "four")), 200, false)
	r := post("k", "")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader("fo"), errReader{}))
	want(t, do(h, r), 400, false)
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestFailuresReleaseOrAreKept(t *testing.T) {
	for name, fail := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"panic":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"panic after a response": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "done")
			panic(http.ErrAbortHandler)
		},
		"large": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			w.Write(make([]byte, 100))
		},
	} {
		for _, keep := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", released", true: ", kept"}[keep], func(t *testing.T) {
				runs := 0
				h := protect(t, inMemory(t), idempotency.Options{Keep: always(keep), MaxResponseBytes: 99}, func(w http.ResponseWriter, r *http.Request) {
					if runs++; runs == 1 {
						fail(w, r)
					}
				})
				panicked := func() (p any) {
					defer func() { p = recover() }()
					do(h, post("k", ""))
					return nil
				}()
				if (panicked != nil) != strings.HasPrefix(name, "panic") {
					t.Errorf("the server sees the panic %v", panicked)
				}
				w := do(h, post("k", ""))
				switch {
				case !keep:
					want(t, w, 200, false)
				case name == "large":
					want(t, w, 409, true)
				default:
					want(t, w, 500, true)
				}
				if ran := runs == 2; ran == keep {
					t.Errorf("%d runs", runs)
				}
			})
		}
	}
}

// watcher calls sent before it sends anything.
type watcher struct {
	*httptest.ResponseRecorder
	sent func()
}

func (w watcher) WriteHeader(status int) {
	w.sent()
	w.ResponseRecorder.WriteHeader(status)
}

func TestNothingIsSentBeforeItIsDurable(t *testing.T) {
	for name, size := range map[string]int{"held back": 10, "too large": 200} {
		t.Run(name, func(t *testing.T) {
			m := storetest.NewMem(storage.Identity{})
			h := func(e *engine.Engine) http.Handler {
				return protect(t, e, idempotency.Options{MaxResponseBytes: 100}, func(w http.ResponseWriter, _ *http.Request) {
					for range size {
						w.Write([]byte("x"))
					}
				})
			}
			sent := 0
			w := watcher{httptest.NewRecorder(), func() {
				sent++
				after := do(h(openEngine(t, m.CrashClone(0), nil)), post("k", ""))
				want(t, after, map[bool]int{true: 200, false: 409}[size <= 100], true)
			}}
			h(openEngine(t, m, nil)).ServeHTTP(w, post("k", ""))
			if sent != 1 || w.Code != 200 || w.Body.Len() != size {
				t.Errorf("sent %d times: status %d, %d bytes", sent, w.Code, w.Body.Len())
			}
		})
	}
}

func TestResponseAboveTheLimitIsSentAndNotRunAgain(t *testing.T) {
	for name, o := range map[string]struct {
		bytes, header int
	}{"body": {101, 0}, "headers": {1, limits.DataBytes}} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			h := protect(t, inMemory(t), idempotency.Options{MaxResponseBytes: 100}, func(w http.ResponseWriter, _ *http.Request) {
				runs++
				w.Header().Set("X", strings.Repeat("x", o.header))
				w.Write(make([]byte, o.bytes))
				w.Header().Set(http.TrailerPrefix+"T", "t")
			})
			w := do(h, post("k", ""))
			want(t, w, 200, false)
			if w.Body.Len() != o.bytes || len(w.Header().Get("X")) != o.header || w.Result().Trailer.Get("T") != "t" {
				t.Errorf("%d bytes, %v", w.Body.Len(), w.Result().Trailer)
			}
			w = do(h, post("k", ""))
			want(t, w, 409, true)
			if w.Header().Get("Retry-After") != "" || runs != 1 {
				t.Errorf("%v, %d runs", maps.Collect(maps.All(w.Header())), runs)
			}
		})
	}
}

func TestNoFlusherAndNoHijacker(t *testing.T) {
	h := protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		_, _, err := c.Hijack()
		for _, err := range []error{err, c.Flush()} {
			if !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("a response that is held back: %v", err)
			}
		}
	})
	want(t, do(h, post("k", "")), 200, false)
}

func TestStoreFailure(t *testing.T) {
	for name, c := range map[string]struct {
		inHandler, open bool
		status, runs    int
	}{
		"claim, closed":  {false, false, 503, 0},
		"claim, open":    {false, true, 201, 1},
		"finish, closed": {true, false, 503, 1},
		"finish, open":   {true, true, 201, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := storetest.NewMem(storage.Identity{})
			handler, runs := counting()
			reported := 0
			o := idempotency.Options{FailOpen: c.open, OnError: func(*http.Request, error) { reported++ }}
			h := protect(t, openEngine(t, m, nil), o, func(w http.ResponseWriter, r *http.Request) {
				if c.inHandler {
					m.Crash()
				}
				handler(w, r)
			})
			if !c.inHandler {
				m.Crash()
			}
			w := do(h, post("k", ""))
			want(t, w, c.status, false)
			if got := strings.Contains(w.Body.String(), "run"); got != (c.status == 201) || runs.Load() != int64(c.runs) || reported != 1 {
				t.Errorf("%s; %d runs, %d errors reported", w.Body, runs.Load(), reported)
			}
			if c.status == 503 && w.Header().Get("Retry-After") != "10" {
				t.Errorf("Retry-After %q", w.Header().Get("Retry-After"))
			}
		})
	}
}

// The handler must not run without a key when the store works.
func TestKeyThatCannotBeJudgedIsRejectedWithFailOpenToo(t *testing.T) {
	c := newClock(time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC))
	e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{MaxIDBytes: 36, Clock: c.now})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	handler, runs := counting()
	reported := 0
	h := protect(t, e, idempotency.Options{FailOpen: true, OnError: func(*http.Request, error) { reported++ }}, handler)
	want(t, do(h, post(strings.Repeat("k", 36), "")), 500, false)
	c.set(c.now().AddDate(-1, 0, 0))
	want(t, do(h, post("k", "")), 503, false)
	if runs.Load() != 0 || reported != 2 {
		t.Errorf("%d runs, %d errors reported", runs.Load(), reported)
	}
}

// A new version of the application may have a shorter retention: the responses of the old one last as
// long as was promised.
func TestAShorterRetentionKeepsEarlierResponses(t *testing.T) {
	for name, start := range map[string]time.Time{
		"midweek": time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC), "across Monday": time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock(start)
			e := openEngine(t, storetest.NewMem(storage.Identity{}), c.now)
			handler, runs := counting()
			do(protect(t, e, idempotency.Options{}, handler), post("k", ""))
			c.set(start.AddDate(0, 0, 3))
			do(protect(t, e, idempotency.Options{Retention: 24 * time.Hour}, handler), post("k", ""))
			if n := runs.Load(); n != 1 {
				t.Errorf("%d runs, want 1", n)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	e := inMemory(t)
	for name, o := range map[string]idempotency.Options{
		"lease":           {Lease: time.Millisecond},
		"longest lease":   {Lease: 25 * time.Hour},
		"request":         {MaxRequestBytes: -1},
		"response":        {MaxResponseBytes: limits.DataBytes + 1},
		"retention":       {Retention: 36 * 24 * time.Hour},
		"window":          {Retention: -1},
		"no method":       {Methods: []string{}},
		"lower case":      {Methods: []string{"POST", "post"}},
		"longest arrival": {Retention: 54 * 7 * 24 * time.Hour},
		"scope":           {Scope: " "},
		"header":          {Header: "Idempotency Key"},
		"wait":            {Wait: -1},
	} {
		o.SharedKeys = true
		if _, err := idempotency.New(e, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestStatusRules(t *testing.T) {
	h := protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
		w.WriteHeader(http.StatusTeapot)
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("a body after 204: %v", err)
		}
	})
	for _, replayed := range []bool{false, true} {
		w := do(h, post("k", ""))
		want(t, w, 204, replayed)
		if w.Body.Len() > 0 {
			t.Errorf("a body after 204: %q", w.Body)
		}
	}
}

// The target that the client has asked for counts, not what is left of it.
func TestTheWholePathIsCompared(t *testing.T) {
	handler, runs := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	mux := http.NewServeMux()
	mux.Handle("/payments/", http.StripPrefix("/payments", h))
	mux.Handle("/refunds/", http.StripPrefix("/refunds", h))
	ask := func(path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.Header.Set(idempotency.KeyHeader, "k")
		return do(mux, r)
	}
	ask("/payments/17")
	want(t, ask("/refunds/17"), 422, false)
	if w := ask("/payments/17"); w.Header().Get(idempotency.ReplayedHeader) != "true" || runs.Load() != 1 {
		t.Errorf("status %d after %d runs", w.Code, runs.Load())
	}
}

// An outer handler may parse the body as a form; then its fields are compared. Files are not.
func TestAParsedFormIsCompared(t *testing.T) {
	handler, runs := counting()
	var reported error
	h := protect(t, inMemory(t), idempotency.Options{OnError: func(_ *http.Request, err error) { reported = err }}, handler)
	ask := func(kind, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		r.Header.Set(idempotency.KeyHeader, "k")
		_ = r.FormValue("csrf")
		return do(h, r)
	}
	const form = "application/x-www-form-urlencoded"
	ask(form, "amount=5&to=a")
	want(t, ask(form, "amount=500&to=a"), 422, false)
	if w := ask(form, "to=a&amount=5"); w.Header().Get(idempotency.ReplayedHeader) != "true" {
		t.Errorf("the same form: status %d", w.Code)
	}
	want(t, ask(`multipart/form-data; boundary="x"`, "--x\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n5\r\n--x--\r\n"), 500, false)
	if runs.Load() != 1 || reported == nil {
		t.Errorf("%d runs, reported %v", runs.Load(), reported)
	}
}
