package idempotency_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
)

// A middleware inside changes the request that it got, as in *r = *r.WithContext(ctx).
func TestWhatAHandlerDoesToItsRequestDecidesNothing(t *testing.T) {
	for name, change := range map[string]func(r *http.Request){
		"context": func(r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			*r = *r.WithContext(ctx)
			cancel()
		},
		"method": func(r *http.Request) { r.Method = http.MethodHead },
		"all":    func(r *http.Request) { *r = http.Request{} },
	} {
		t.Run(name, func(t *testing.T) {
			h := protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				change(r)
				w.WriteHeader(http.StatusNotFound)
			})
			want(t, do(h, post("k", "")), 404, false)
			want(t, do(h, post("k", "")), 404, true)
			// HEAD may have a length without a body.
			h = protect(t, inMemory(t), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				change(r)
				w.Header().Set("Content-Length", "5")
				io.WriteString(w, "hell")
			})
			want(t, do(h, post("k", "")), 500, false)
			h = protect(t, inMemory(t), idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) { change(r) })
			want(t, do(h, post("k", "")), 200, false)
		})
	}
}

func TestTheCallersRequestIsNotTheHandlers(t *testing.T) {
	h := protect(t, inMemory(t), idempotency.Options{Optional: true}, func(_ http.ResponseWriter, r *http.Request) { *r = http.Request{} })
	for _, key := range []string{"k", ""} {
		r := post(key, "")
		do(h, r)
		if r.Method != http.MethodPost {
			t.Error("the handler has changed the caller's request")
		}
	}
}

func TestAnotherHeader(t *testing.T) {
	handler, runs := counting()
	server := httptest.NewServer(protect(t, inMemory(t), idempotency.Options{Header: "x-request-id"}, handler))
	defer server.Close()
	for i, header := range []string{"X-Request-Id", "X-Request-ID", ""} {
		r, err := http.NewRequestWithContext(idempotency.WithKey(t.Context(), "k"), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&idempotency.Transport{Header: header}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if expected := []int{201, 201, 400}[i]; resp.StatusCode != expected || expected == 400 && !strings.Contains(string(body), "X-Request-Id") {
			t.Errorf("%q: status %d, %s", header, resp.StatusCode, body)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestProblemsHaveATypeOfTheirOwn(t *testing.T) {
	handler, _ := counting()
	h := protect(t, inMemory(t), idempotency.Options{}, handler)
	do(h, post("k", ""))
	for name, w := range map[string]*httptest.ResponseRecorder{
		"key-missing": do(h, post("", "")), "key-malformed": do(h, post(`"`, "")), "key-used-for-another-request": do(h, post("k", "b")),
	} {
		var problem struct {
			Type   string
			Status int
		}
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Type != idempotency.ProblemTypes+name || problem.Status != w.Code {
			t.Errorf("%s: %s, %v", name, w.Body, err)
		}
	}
}

// The answer of the first run is ready before the lease would end.
func TestARetryWaitsForTheFirstRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		h := protect(t, inMemory(t), idempotency.Options{Wait: time.Second}, func(http.ResponseWriter, *http.Request) {
			started <- struct{}{}
			time.Sleep(1900 * time.Millisecond)
		})
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- do(h, post("k", "")) }()
		<-started
		began := time.Now()
		w := do(h, post("k", ""))
		want(t, w, http.StatusConflict, false)
		if took := time.Since(began); took != time.Second || w.Header().Get("Retry-After") == "" {
			t.Errorf("409 after %v, %v", took, w.Header())
		}
		want(t, do(h, post("k", "")), http.StatusOK, true)
		if took := time.Since(began); took < 1900*time.Millisecond || took > 2150*time.Millisecond {
			t.Errorf("the response after %v", took)
		}
		want(t, <-first, http.StatusOK, false)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { first <- do(h, post("l", "")) }()
		<-started
		cancel()
		began = time.Now()
		want(t, do(h, post("l", "").WithContext(ctx)), http.StatusServiceUnavailable, false)
		if took := time.Since(began); took > 0 {
			t.Errorf("a client that has gone waits %v", took)
		}
		<-first
	})
}

// A key that came in the last moment of its week lasts as long as one that came in the first, although
// expired weeks are dropped.
func TestTheDefaultsOfTheEngineCoverTheDefaultRetention(t *testing.T) {
	for name, start := range map[string]time.Time{
		"Monday": time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC), "Sunday": time.Date(2026, 3, 8, 23, 59, 59, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock(start)
			e, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{Clock: c.now})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			handler, _ := counting()
			h := protect(t, e, idempotency.Options{Clock: c.now}, handler)
			want(t, do(h, post("k", "")), 201, false)
			c.set(start.Add(idempotency.DefaultRetention - time.Millisecond))
			if _, err := e.Retention().DropAllExpired(t.Context()); err != nil {
				t.Fatal(err)
			}
			want(t, do(h, post("k", "")), 201, true)
			c.set(start.Add(idempotency.DefaultRetention))
			want(t, do(h, post("k", "")), 201, false)
		})
	}
}
